"""`explain` looks into `torch.func`: what a transform computed is computed again by plain passes."""

import pytest
import torch
from origins import report_of, told
from torch import nn
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

from zero_or_nan import explain

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # PyTorch's forward mode calls it

X = torch.tensor([1.0, 0.0])
SQRT = ("undefined", "backward", "sqrt")


def root(x):
    return x.sqrt().sum()


def chosen(x):
    return torch.where(x > 0, x.sqrt(), 0).sum()


def used(number):
    weight = torch.ones(2, requires_grad=True)
    (number * weight).sum().backward()


def two(x, y):
    return x.sqrt() * y, {"aux": x}


CASES = {
    "grad": (lambda: grad(root)(X), SQRT),
    "a gradient that a loss uses": (lambda: used(grad(root)(X)), SQRT),
    "the gradient of a gradient": (lambda: grad(lambda x: grad(root)(x).sum())(X), SQRT),
    "a gradient that the function ignores": (lambda: grad(chosen)(X), ("contaminated", "backward", "sqrt")),
    "the gradient of each sample": (lambda: vmap(grad(torch.sqrt))(X), SQRT),
    "each row of a dict": (
        lambda: vmap(grad(lambda w, x: (w["a"] * x.sqrt()).sum(), argnums=1), in_dims=(None, 1), out_dims=1)(
            {"a": torch.ones(3)}, torch.eye(3)
        ),
        SQRT,
    ),
    "in chunks": (lambda: vmap(grad(torch.sqrt), chunk_size=1)(X), SQRT),
    "a value of each sample": (lambda: vmap(lambda x: x.log())(X), ("undefined", "forward", "log")),
    "vjp": (lambda: vjp(torch.sqrt, X)[1](torch.ones(2)), SQRT),
    "the value of vjp": (lambda: vjp(torch.log, X)[0], ("undefined", "forward", "log")),
    "jvp": (lambda: jvp(torch.sqrt, (X,), (torch.ones(2),)), SQRT),
    "jacrev of several arguments": (lambda: jacrev(two, argnums=(0, 1), has_aux=True)(X, torch.ones(2)), SQRT),
    "jacfwd": (lambda: jacfwd(torch.sqrt)(X), SQRT),
    "hessian": (lambda: hessian(root)(X), SQRT),
    "what came in": (
        lambda: vmap(grad(lambda x: x * x))(torch.tensor([1.0, torch.nan])),
        ("bad input", "forward", "mul"),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_line_inside_of_a_transform_is_told(case):
    program, origin = CASES[case]
    report = report_of(program)
    assert told(report)[:1] == [origin] and not report.notes, report
    assert report.passes == (case == "a gradient that a loss uses")


@pytest.mark.parametrize("bad, again", [([5], [5]), ([4, 5, 8], [4, 5])])
def test_of_a_batch_two_samples_run_again(bad, again):
    def root_of(x, number):
        calls.append(number)
        return x.sqrt()

    calls, x = [], torch.ones(9)
    x[bad] = 0
    report = report_of(lambda: vmap(grad(root_of))(x, torch.arange(9)))
    assert told(report) == [SQRT]
    assert [number.item() for number in calls[1:]] == again


@pytest.mark.parametrize("size", [128, 129])
def test_a_large_batch_inside_of_a_transform_is_not_repeated(size):
    x = torch.ones(size)
    x[-1] = 0
    report = report_of(lambda: grad(lambda x: vmap(torch.sqrt)(x).sum())(x))
    assert told(report) == [SQRT if size == 128 else ("bad input", "forward", "torch.func")]
    assert bool(report.notes) is (size > 128)


def test_what_a_transform_or_the_program_leaves_out_is_not_told():
    def inside(x):
        slope = grad(root)(x)
        return torch.where(slope.isfinite(), slope, 0).sum()

    def outside():
        slope = grad(root)(X)
        used(torch.where(slope.isfinite(), slope, 0))

    def of_a_nan():
        return vmap(lambda y: y.nan_to_num(neginf=0.0))(X.log())

    for program in (
        outside,
        of_a_nan,
        lambda: inside(X),
        lambda: grad(inside)(X + 1),
        lambda: vmap(inside)(X[:, None]),
    ):
        assert report_of(program).ok


def test_the_same_line_inside_of_a_transform_and_outside():
    """The tensors of a transform have no memory to ask for."""

    def loss_of(x):
        return torch.where(x > 9, x, (x - x.detach()).sqrt()).mean()

    x = torch.ones(3, 2, requires_grad=True)
    report = report_of(lambda: [vmap(grad(loss_of))(x.detach()), loss_of(x).backward()])
    assert told(report) == [SQRT]


def test_results_random_numbers_and_buffers_stay_those_of_the_transform():
    net = nn.BatchNorm1d(2)
    kept = dict(net.named_buffers())

    def loss_of(x, buffers):
        return (functional_call(net, buffers, (x,)) * torch.rand(())).pow(2).sum().sub(9).sqrt()

    def root_of(x):
        return (x * (torch.rand(()) - 0.6)).sqrt()

    def program():
        torch.manual_seed(0)
        buffers = {name: buffer.clone() for name, buffer in kept.items()}
        found = grad(loss_of)(torch.eye(2), buffers), vmap(grad(root_of), randomness="different")(torch.zeros(5))
        return found, buffers, torch.rand(2)

    plain = program()
    with explain() as report:
        explained = program()
    assert told(report) == [("undefined", "forward", "sqrt"), SQRT]
    torch.testing.assert_close(explained, plain, rtol=0, atol=0, equal_nan=True)


def test_the_same_random_numbers_are_drawn_again():
    def loss_of(x):
        return (torch.rand(()) - 0.6).sqrt() * x  # 0.50 is drawn, and then 0.77

    torch.manual_seed(0)
    assert told(report_of(lambda: grad(loss_of)(torch.tensor(2.0)))) == [("undefined", "forward", "sqrt")]


def test_the_remedy_of_a_gradient_that_is_ignored_is_written_into_the_line(program):
    lines = "f = lambda x: torch.where(x > 0, x.sqrt(), 0).sum()\nslope = vmap(grad(f))(x)\nloss = (slope * x).sum()"
    origin, *_ = program.origins("[4.0, 0.0]", f"from torch.func import grad, vmap\n{lines}")
    assert origin.remedy.splitlines()[1].startswith("slope = vmap(ignoring.func.grad(f))(x)")
    assert program.paste(origin)["slope"].tolist() == [0.25, 0.0]


def test_a_compiled_function_may_use_transforms():
    compiled = torch.compile(vmap(grad(torch.sin)), backend="eager", fullgraph=True)
    with explain() as report:
        assert torch.equal(compiled(X), X.cos())
    assert report.ok
