"""What a user says of code of their own: records, rules and derivatives, and what is told of code without them."""

import importlib
from contextlib import nullcontext
from math import inf, nan

import pytest
import torch
from telling import ByOperators, Exponential, told
from torch import Tensor
from users_functions import function, saving

from zero_or_nan import functions, ignoring
from zero_or_nan.functions import registry
from zero_or_nan.functions.registry import NEWEST
from zero_or_nan.ignoring import FUNCTIONS
from zero_or_nan.ignoring.engine.masked_pass import Pass

pytestmark = pytest.mark.usefixtures("registries_as_before")


@pytest.fixture
def library(request):
    """A namespace of operators of its own for each test."""
    name = f"ours{abs(hash(request.node.name)) % 10**8}"
    with torch.library._scoped_library(name, "FRAGMENT"):
        yield name


def gradient_of(function, entries=(1.0, 100.0), used=(True, False)):
    x = torch.tensor(entries, requires_grad=True)
    ignoring.backward(torch.where(torch.tensor(used), function(x), torch.zeros(())).sum())
    return x.grad


def test_what_the_loss_uses_stays_undefined():
    ignoring.function(ByOperators)
    gradient, warned = told(lambda: gradient_of(ByOperators.apply, (nan, 100.0, 100.0), (True, True, False)))
    assert gradient[0].isnan() and gradient[1] == inf and gradient[2] == 0 and warned == []


@pytest.mark.parametrize("entries, plain", [((1.0, 2.0), True), ((1.0, 100.0), False)])
def test_a_look_at_what_it_saved_leaves_clean_data_to_pytorch(monkeypatch, entries, plain):
    ignoring.function(ByOperators, safe_if=ignoring.FINITE)
    entered = []
    enter = Pass.__enter__
    monkeypatch.setattr(Pass, "__enter__", lambda self: (entered.append(1), enter(self))[1])
    gradient = gradient_of(ByOperators.apply, entries)
    tells = hasattr(torch._C._autograd.SavedTensor, "unpack_hook")  # an older PyTorch can't say whether it is as it was
    assert bool(entered) is not (plain and tells)
    assert gradient[1] == 0


def test_several_results_inputs_without_gradient_and_unused_results():
    class Both(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, number, other):
            ctx.save_for_backward(x)
            ctx.number = number
            return x.log() * number, x.sqrt()

        @staticmethod
        def backward(ctx, one, two):
            (x,) = ctx.saved_tensors
            return one * ctx.number / x + two * 0.5 / x.sqrt(), None, None

    ignoring.function(Both)
    gradient, warned = told(lambda: gradient_of(lambda x: Both.apply(x, 3.0, torch.ones(2))[0], (1.5, 0.0)))
    assert gradient.tolist() == [2.0, 0] and warned == []
    gradient, warned = told(lambda: gradient_of(lambda x: sum(Both.apply(x, 3.0, None)), (4.0, 0.0)))
    assert gradient.tolist() == [1.0, 0] and warned == []


def test_numbers_that_left_pytorch_are_told_of():
    ignoring.function(Exponential)
    gradient, (message,) = told(lambda: gradient_of(Exponential.apply))
    assert gradient[1].isnan() and "Exponential (a result of its backward is no Cotangent" in message
    assert told(lambda: gradient_of(Exponential.apply, (1.0, 2.0)))[1] == []  # nothing was lost


def clipped(library, record=True):
    """An operator whose backward calls a kernel, both made by `torch.library`."""

    @torch.library.custom_op(f"{library}::clip", mutates_args=())
    def clip(x: Tensor, bound: float) -> Tensor:
        return bound * torch.tanh(x / bound)

    @torch.library.custom_op(f"{library}::clip_backward", mutates_args=())
    def clip_backward(gradient: Tensor, x: Tensor, bound: float) -> Tensor:
        return gradient / torch.cosh(x / bound).square()

    def setup(ctx, inputs, output):
        x, ctx.bound = inputs
        ctx.save_for_backward(x)

    def backward(ctx, gradient):
        return clip_backward(gradient, ctx.saved_tensors[0], ctx.bound), None

    clip.register_autograd(backward, setup_context=setup)
    if record:
        ignoring.function(f"{library}::clip", safe_if=ignoring.FINITE)
    return clip


def by_entry(op, gradient, x, bound):
    return ignoring.zero_ignored(op(ignoring.unwrap(gradient), x, bound), ignoring.mask_of(gradient))


@pytest.mark.parametrize("record", [False, True])
def test_a_kernel_without_a_rule_is_told_of(library, record):
    clip = clipped(library, record)
    gradient, (message,) = told(lambda: gradient_of(lambda x: clip(x, 2.0), (1.0, nan)))
    assert gradient[1].isnan() and f"{library}::clip_backward (no rule)" in message


@pytest.mark.setup(
    "Your own operator of `torch.library`",
    '@ignoring.rule("mylib::clip_backward")\ndef by_entry(op, gradient, x, bound):\n'
    "    value = op(ignoring.unwrap(gradient), x, bound)\n"
    "    return ignoring.zero_ignored(value, ignoring.mask_of(gradient))",
    "The rule says what the kernel in your operator's backward does to ignored elements. Without "
    "a rule, a warning names the kernel.",
)
@pytest.mark.parametrize("record", [False, True])
def test_with_a_rule_it_is_followed(library, record):
    clip = clipped(library, record)
    ignoring.rule(f"{library}::clip_backward")(by_entry)
    gradient, warned = told(lambda: gradient_of(lambda x: clip(x, 2.0), (1.0, nan, nan), (True, False, True)))
    expected = gradient_of(lambda x: 2 * torch.tanh(x / 2), (1.0, nan, nan), (True, False, True))
    assert torch.allclose(gradient, expected, rtol=1e-6, equal_nan=True)
    assert gradient[1] == 0 and gradient[2].isnan()
    if record:
        assert warned == []
    else:  # the NaN may be there because the backward selects
        assert f"{library}::clip (it may select, and has no record)" in warned[0]


def test_of_ones_own_the_later_record_and_rule_count_as_when_a_cell_is_run_again(library):
    clip = clipped(library)
    ignoring.rule(f"{library}::clip_backward")(lambda op, *args: 1 / 0)
    for _ in range(2):
        ignoring.function(f"{library}::clip")
        ignoring.function(ByOperators, safe_if=ignoring.FINITE)
        ignoring.rule(f"{library}::clip_backward")(by_entry)
    gradient, warned = told(lambda: gradient_of(lambda x: clip(x, 2.0), (1.0, nan)))
    assert gradient[1] == 0 and warned == []


def refusing(op, *args):
    raise ignoring.NotFollowed("not on a Sunday")


WRONG_RULES = {
    "raises": (lambda op, *args: 1 / 0, "(ZeroDivisionError: division by zero)"),
    "refuses": (refusing, "clip_backward (not on a Sunday)"),
    "calls its own operator on a Cotangent": (lambda op, g, *rest: op(g, *rest), "give that unwrap"),
    "gives a Cotangent to zero_ignored": (
        lambda op, g, *rest: ignoring.zero_ignored(g * 2, ignoring.mask_of(g)), "zero_ignored needs a plain"),
    "gives a Cotangent to prefer_exact": (
        lambda op, g, *rest: ignoring.prefer_exact(g * 2, g * 2), "prefer_exact needs a plain tensor"),
    "merges another shape": (
        lambda op, g, *rest: ignoring.prefer_exact(op(ignoring.unwrap(g), *rest), (g * 2)[:1]), "of shape"),
    "returns nothing": (lambda op, g, *rest: None, "it returned None in place of a Cotangent"),
    "returns a plain tensor": (lambda op, g, *rest: op(ignoring.unwrap(g), *rest), "a Tensor in place of a Cotangent"),
    "returns two": (lambda op, g, *rest: (g, g), "it returned 2 results, and the operator has 1"),
    "has a mask of numbers": (
        lambda op, g, *rest: ignoring.Cotangent(op(ignoring.unwrap(g), *rest), g.mask.float()), "has to be bool"),
    "has a mask of another shape": (
        lambda op, g, *rest: ignoring.Cotangent(op(ignoring.unwrap(g), *rest), g.mask[:1]), "its mask has shape"),
    "has another shape": (
        lambda op, g, *rest: ignoring.Cotangent(torch.zeros(3), None), "a tensor of shape (3,), torch.float32, on cpu"),
    "has another dtype": (lambda op, g, *rest: g.double(), "a tensor of shape (2,), torch.float64, on cpu"),
    "calls NaN ignored": (
        lambda op, g, *rest: ignoring.Cotangent(op(ignoring.unwrap(g), *rest), g.mask), "ignored that is not 0"),
    "has its mask in another place": (
        lambda op, g, *rest: ignoring.zero_ignored(op(ignoring.unwrap(g), *rest), g.mask.flip(0)),
        "ignored that is not 0"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_RULES)
def test_a_wrong_rule_is_told_of_and_plain_pytorchs_result_taken(library, name, monkeypatch):
    monkeypatch.setattr(Pass, "raises_bugs", False)
    wrong, said = WRONG_RULES[name]
    clip = clipped(library)
    ignoring.rule(f"{library}::clip_backward")(wrong)
    gradient, (message,) = told(lambda: gradient_of(lambda x: clip(x, 2.0), (1.0, nan)))
    assert said in message and (f"failed in your rule of {library}::clip_backward (" in message or name == "refuses")
    assert type(gradient) is Tensor and gradient[0].isfinite() and gradient[1].isnan()


WRONG_DERIVATIVES = {
    "raises": (lambda node, cotangents: cotangents[0] * node.no_such_thing, "no_such_thing"),
    "returns another shape": (lambda node, cotangents: cotangents[0][:1], "of shape (1,)"),
    "returns nothing": (lambda node, cotangents: None, "None in place of a Cotangent"),
    "returns too few": (lambda node, cotangents: (), "None in place of a Cotangent"),
}


@pytest.mark.parametrize("name", WRONG_DERIVATIVES)
def test_a_wrong_derivative_is_told_of_as_the_users(name):
    wrong, said = WRONG_DERIVATIVES[name]
    ignoring.derivative(ByOperators)(wrong)
    gradient, (message,) = told(lambda: gradient_of(ByOperators.apply))
    assert "failed in your rule of ByOperators" in message and said in message
    assert type(gradient) is Tensor and gradient[0].isfinite() and gradient[1].isnan()


def test_a_kernel_that_writes_has_no_rule_and_crashes_nothing(library):
    @torch.library.custom_op(f"{library}::scale", mutates_args=("x",))
    def scale(x: Tensor, factor: Tensor) -> None:
        x.mul_(factor)

    with pytest.raises(ValueError, match="scale writes into its arguments, which no rule can follow; use"):
        ignoring.rule(f"{library}::scale")

    def backward(ctx, gradient):
        made = gradient * 1
        scale(made, ctx.saved_tensors[0])
        return made

    scaled = function(saving(lambda x: x * 1), backward)
    ignoring.function(scaled.__self__)
    gradient, (message,) = told(lambda: gradient_of(scaled, (2.0, nan)))
    assert gradient[0] == 2 and gradient[1].isnan() and f"{library}::scale (has no out-of-place form)" in message
    gradient, warned = told(lambda: gradient_of(scaled, (2.0, 3.0)))
    assert gradient.tolist() == [2, 0] and warned == []


def test_prefer_exact_keeps_the_layout_of_plain_pytorchs_result():
    exact = torch.tensor([[1.0, 9.0, nan, 9.0], [inf, 9.0, 4.0, 9.0]])[:, ::2]
    careful = ignoring.Cotangent(torch.tensor([[5.0, 6.0], [7.0, 8.0]]), torch.tensor([[True, True], [True, False]]))
    for laid_out in (exact, exact.mT.contiguous().mT):
        merged = ignoring.prefer_exact(laid_out, careful)
        assert ignoring.unwrap(merged).stride() == laid_out.stride()
        assert ignoring.unwrap(merged).tolist() == [[1.0, 6.0], [7.0, 4.0]]
        assert ignoring.mask_of(merged).tolist() == [[True, True], [True, False]]


RECORDED = {
    "Dirichlet": lambda x: torch.distributions.Dirichlet(x, validate_args=False).rsample().square(),
    "Beta": lambda x: torch.distributions.Beta(x[:, 0], x[:, 1], validate_args=False).rsample().square(),
    "resize": lambda x: x.log().resize(2, 3, 1)[..., 0].T,
}


@pytest.mark.filterwarnings("ignore:non-inplace resize is deprecated")
@pytest.mark.parametrize("name", RECORDED)
def test_a_function_in_python_of_pytorchs_own_has_a_record(name):
    def gradient(method, used):
        torch.manual_seed(0)
        x = torch.tensor([[1.0, 2.0], [0.5, 3.0], [nan, nan]], requires_grad=True)
        return method(RECORDED[name](x)[used].sum(), x)[0]

    first = slice(0, 1) if name == "resize" else slice(0, 2)
    (ours, warned), plain = told(lambda: gradient(ignoring.grad, first)), gradient(torch.autograd.grad, first)
    assert warned == [] and not ours[2].any() and plain[2].isnan().any()
    assert torch.equal(ours[:2], plain[:2])
    assert gradient(ignoring.grad, slice(2, 3))[2].isnan().any()


def test_one_without_a_record_is_called_pytorchs_own():
    normalized = torch.nn.CrossMapLRN2d(2)
    _, (message,) = told(lambda: gradient_of(lambda x: normalized(x.view(2, 1, 1, 1)).flatten(), (1.0, nan)))
    assert "could not follow CrossMapLRN2d (a Function of PyTorch's own without a record)" in message


# Names that are refused, in each release of PyTorch.

REFUSED = {
    "no operator nothing::here; define it before its record": lambda: ignoring.function("nothing::here"),
    "no operator nothing::here": lambda: ignoring.rule("nothing::here"),
    "no node is called NoSuchBackward0": lambda: ignoring.function("NoSuch"),
    "slects": lambda: ignoring.function(ByOperators, slects=True),
    "neither the name of a function nor a subclass": lambda: ignoring.function(torch.nn.Linear),
    "rule takes names of operators": lambda: ignoring.rule(torch.ops.aten.mul),
    "rule takes names of operator": lambda: ignoring.rule(),
    "'FINITE' is not a condition; use ignoring.ALWAYS": lambda: ignoring.function(ByOperators, safe_if="FINITE"),
    "Exp has a record already": lambda: ignoring.function("Exp"),
    "aten._values has a rule for sparse gradients already": lambda: ignoring.rule("_values")(print),
    "aten::mul has a rule already: mul": lambda: ignoring.rule("mul"),
}  # fmt: skip


@pytest.mark.parametrize("words", REFUSED)
def test_what_is_no_name_or_has_a_record_already_is_refused(words):
    with pytest.raises((TypeError, ValueError), match=words):
        REFUSED[words]()
    assert ByOperators not in FUNCTIONS


NEW = f"2.{NEWEST[1]}.0", f"2.{NEWEST[1] + 1}.0"


@pytest.mark.parametrize(
    ("release", "names", "refused"),
    [
        *((release, {"since": "2.13"}, True) for release in ("2.13.0", "2.13.1", NEW[0])),
        *((release, {"since": "2.13"}, False) for release in ("2.12.0", NEW[1])),  # the newest may have no such name
        *((release, {"since": "2.9", "until": "2.10"}, True) for release in ("2.9.0", "2.10.0")),
        *((release, {"since": "2.9", "until": "2.10"}, False) for release in ("2.8.0", "2.11.0")),
    ],
)
def test_a_name_that_pytorch_lacks_is_refused_in_the_releases_that_are_said_to_have_it(
    release, names, refused, monkeypatch
):
    monkeypatch.setattr(torch, "__version__", release)
    words = "until='…' if newer ones do" if "until" in names else f"in PyTorch {release}"
    for register in (ignoring.function, ignoring.rule):
        with pytest.raises(ValueError, match=words) if refused else nullcontext():
            register("NoSuch", **names)


@pytest.mark.parametrize("release, selects", [("2.15.0", False), ("2.16.0", True)])
def test_a_function_has_one_record_before_a_release_and_another_one_from_it_on(release, selects, monkeypatch):
    monkeypatch.delitem(FUNCTIONS, "Exp")
    monkeypatch.setattr(torch, "__version__", release)
    ignoring.function("Exp", until="2.15")
    ignoring.function("Exp", since="2.16", selects=True)
    assert FUNCTIONS["Exp"].selects == selects


def test_a_name_that_a_newer_release_lacks_is_reported_when_the_library_is_imported(monkeypatch):
    monkeypatch.setattr(torch, "__version__", NEW[1])
    monkeypatch.setattr(registry, "MISSING", [])
    ignoring.function("NoSuch")
    with pytest.warns(UserWarning, match="no node is called NoSuchBackward0. PyTorch may have renamed them"):
        importlib.reload(functions)
