"""Around code that a backward pass can't look into, and without a backward pass."""

from functools import partial

import pytest
import torch
from comparing import STEPS, compare, compared, is_used, loss_of, network, state, steps
from torch.func import functional_call, jacrev, vmap

from zero_or_nan import ignoring


@pytest.fixture
def compiler(monkeypatch, fresh_compiler):
    """`torch.compile`, without the step that needs a compiler of C++."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))


@pytest.fixture(params=["aot_eager", "inductor"])
def backend(request, monkeypatch, fresh_compiler):
    """`torch.compile` with one of two backends. Inductor needs a compiler of C++."""
    if request.param == "inductor":
        request.getfixturevalue("inductor")
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=request.param))


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning", "ignore:Skipping serial")  # of inductor itself
@pytest.mark.setup(
    "A compiled model",
    "ignoring.follow_compiled()\nmodel = torch.compile(model)\nloss = loss_of(model, rows)\nignoring.backward(loss)",
    "In a contaminated pass, `ignoring` follows the compiled backward graph. If that fails, a warning says so.",
)
@compared()
def test_a_compiled_model(ignoring, rows, unmarked, backend):
    torch._dynamo.reset()
    model = network()
    if hasattr(ignoring, "follow_compiled"):
        ignoring.follow_compiled()
    model = torch.compile(model)
    for _ in steps(model):
        loss = loss_of(model, rows)
        ignoring.backward(loss)
    return state(model, loss)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning", "ignore:Skipping serial")  # of inductor itself
@pytest.mark.setup(
    "A compiled model, with a selection inside of the region",
    "ignoring.follow_compiled()\nloss_of_rows = torch.compile(loss_of)\nloss = loss_of_rows(model, rows)\n"
    "ignoring.backward(loss)",
    "Compiling hides which zeros come from a selection. With `follow_compiled`, `ignoring` still knows them. Before "
    "PyTorch 2.8, it warns.",
)
@compared()
def test_a_compiled_selection(ignoring, rows, unmarked, backend):
    torch._dynamo.reset()
    model = network()
    if hasattr(ignoring, "follow_compiled"):
        ignoring.follow_compiled()
    loss_of_rows = torch.compile(loss_of)
    for _ in steps(model):
        loss = loss_of_rows(model, rows)
        ignoring.backward(loss)
    return state(model, loss)


@pytest.mark.setup(
    "A compiled model, run eagerly on bad rows",
    'stance = "default" if is_used(rows).all() else "force_eager"\n'
    "with torch.compiler.set_stance(stance):\n    loss = loss_of(model, rows)\nignoring.backward(loss)",
    "Batches with a bad row run uncompiled; all others keep their compiled code.",
)
@compared()
def test_a_compiled_model_run_eagerly_on_bad_rows(ignoring, rows, compiler):
    model = torch.compile(network())
    for _ in steps(model):
        stance = "default" if is_used(rows).all() else "force_eager"
        with torch.compiler.set_stance(stance):
            loss = loss_of(model, rows)
        ignoring.backward(loss)
    return state(model, loss)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # Dynamo looks at it
@pytest.mark.setup(
    "A compiled part behind a selection",
    "head = torch.compile(model[1:])\nhidden = model[0](rows)[is_used(rows)]\nloss = head(hidden).square().sum()\n"
    "ignoring.backward(loss)",
    "Compile only the part that gets no ignored element, and leave the part before it uncompiled.",
)
@compared()
def test_a_compiled_part_behind_a_selection(ignoring, rows, compiler):
    model = network()
    head = torch.compile(model[1:])
    for _ in steps(model):
        hidden = model[0](rows)[is_used(rows)]
        loss = head(hidden).square().sum()
        ignoring.backward(loss)
    return state(model, loss)


class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 2 * x * gradient


@pytest.mark.setup(
    "Your own `autograd.Function`",
    "squares = Squared.apply(model(rows))\nloss = torch.where(used, squares, 0.0).sum()\nignoring.backward(loss)",
    "`ignoring` warns if it can't follow your function, for example if its backward uses NumPy, `data_ptr` or `out=`, "
    "or itself runs a backward pass.",
)
@compared()
def test_a_function_of_ones_own(ignoring, rows):
    model = network()
    used = is_used(rows)[:, None]
    for _ in steps(model):
        squares = Squared.apply(model(rows))
        loss = torch.where(used, squares, 0.0).sum()
        ignoring.backward(loss)
    return state(model, loss)


@pytest.mark.setup(
    "Your own `autograd.Function` behind a selection",
    "squares = Squared.apply(model(rows)[used])\nignoring.backward(squares.sum())",
    "Your function gets only elements that the loss uses, so only the code before it needs `ignoring`.",
)
@compared()
def test_a_function_of_ones_own_behind_a_selection(ignoring, rows):
    model = network()
    used = is_used(rows)
    for _ in steps(model):
        squares = Squared.apply(model(rows)[used])
        ignoring.backward(squares.sum())
    return state(model, squares.sum())


@pytest.mark.setup(
    "Your own `autograd.Function`, registered",
    "ignoring.function(Squared)\nignoring.backward(loss)",
    "Call `ignoring.function` once. Then `ignoring` follows your function, as it follows PyTorch's own.",
)
def test_a_function_of_ones_own_with_a_record(request):
    ignoring.function(Squared)
    request.addfinalizer(lambda: ignoring.FUNCTIONS.pop(Squared))

    def train(ignoring, rows):
        model = network()
        used = is_used(rows)[:, None]
        for _ in steps(model):
            squares = Squared.apply(model(rows))
            loss = torch.where(used, squares, 0.0).sum()
            ignoring.backward(loss)
        return state(model, loss)

    compare(train)


@pytest.mark.setup(
    "`vmap` and `jacrev` inside the loss",
    "out = vmap(model)(rows)\nslope = vmap(jacrev(model))(rows)[:, 0]\n"
    "terms = out.square() + slope.square()\nloss = torch.where(used, terms, 0.0).sum()\nignoring.backward(loss)",
    "`ignoring` follows them like any other code of the forward pass.",
)
@compared()
def test_vmap_and_jacrev_inside_the_loss(ignoring, rows):
    model = network()
    used = is_used(rows)[:, None]
    for _ in steps(model):
        out = vmap(model)(rows)
        slope = vmap(jacrev(model))(rows)[:, 0]
        terms = out.square() + slope.square()
        loss = torch.where(used, terms, 0.0).sum()
        ignoring.backward(loss)
    return state(model, loss)


@pytest.mark.setup(
    "`torch.func.grad`",
    "gradients = ignoring.func.grad(total)(parameters)",
    "Or `vjp`, `jacrev` or `grad_and_value`. They work under `torch.vmap`, too. Another transform of `torch.func` "
    "around it raises an error.",
)
@compared()
def test_the_gradient_of_a_function(ignoring, rows):
    if ignoring is torch.autograd:
        ignoring = torch
    model = network()
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}

    def total(parameters):
        return loss_of(partial(functional_call, model, parameters), rows)

    for _ in range(STEPS):
        gradients = ignoring.func.grad(total)(parameters)
        parameters = {name: parameters[name] - 0.1 * gradient for name, gradient in gradients.items()}
    return [total(parameters), *gradients.values(), *parameters.values()]


@pytest.mark.setup(
    "`torch.func.functional_call`",
    "out = functional_call(model, parameters, rows)\nloss = torch.where(used, out.square(), 0.0).sum()\n"
    "gradients = ignoring.grad(loss, tuple(parameters.values()))",
    "",
)
@compared()
def test_parameters_that_are_arguments(ignoring, rows):
    model = network()
    used = is_used(rows)[:, None]
    parameters = dict(model.named_parameters())
    for _ in range(STEPS):
        out = functional_call(model, parameters, rows)
        loss = torch.where(used, out.square(), 0.0).sum()
        gradients = ignoring.grad(loss, tuple(parameters.values()))
        for (name, parameter), gradient in zip(parameters.items(), gradients, strict=True):
            parameters[name] = (parameter - 0.1 * gradient).detach().requires_grad_()
    return [loss.detach(), *gradients, *(parameter.detach() for parameter in parameters.values())]
