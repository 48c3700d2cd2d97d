"""`backward` and `grad` take what PyTorch's own take, give what they give and raise what they raise."""

import inspect
import math
import random
import warnings

import pytest
import torch
from plainly import seen
from tensors import guard, leaf
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import get_gradient_edge
from torch.masked import MaskedTensor
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from zero_or_nan import ignoring
from zero_or_nan.functions.graph import TELLS_OF_HOOKS, graph_from
from zero_or_nan.ignoring import Cotangent
from zero_or_nan.ignoring.engine import passes
from zero_or_nan.ignoring.engine.attach import needed_from

DICTS = "dict" in str(inspect.signature(torch.autograd.grad).parameters["inputs"])
EDGES = "GradEdge" in str(inspect.signature(torch.autograd.backward).parameters["tensors"])


@pytest.fixture(params=["clean", "contaminated", "careful"])
def values(request, monkeypatch):
    """Numbers of a graph that is left to plain PyTorch, of one that is not, and of one that is thought dangerous."""
    if request.param == "careful":
        monkeypatch.setattr(passes, "is_safe", lambda *_: False)
    return (1.0, 100.0) if request.param == "contaminated" else (1.0, 2.0)


def guard_twice(x):
    """The same as one writes it for plain PyTorch: NaN can't come up."""
    return torch.where(x < 50, torch.where(x < 50, x, 0).exp(), torch.zeros_like(x))


def outcome(call):
    """What a call gives or raises, and what it warns of."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            result = call()
        except Exception as error:
            result = (type(error), str(error))
    return result, [(w.category, str(w.message)) for w in told]


# What PyTorch refuses; each is called with `torch.autograd` and with `ignoring`.

REFUSED = {
    "a vector without a gradient": lambda auto, x: auto.backward(guard(x)),
    "a gradient of another shape": lambda auto, x: auto.backward(guard(x), torch.ones(3)),
    "an array as gradient": lambda auto, x: auto.grad(guard(x), x, torch.ones(2).numpy()),
    "a number as loss": lambda auto, x: auto.backward(3),
    "no loss": lambda auto, x: auto.backward([]),
    "a loss without a graph": lambda auto, x: auto.backward(guard(x.detach()).sum()),
    "a complex loss": lambda auto, x: auto.backward(guard(x).sum() * 1j),
    "an input without a graph": lambda auto, x: auto.grad(guard(x).sum(), torch.ones(2)),
    "an unused input": lambda auto, x: auto.grad(guard(x).sum(), [x, leaf(1.0)]),
    "an input that backward can't take": lambda auto, x: auto.backward(guard(x).sum(), inputs=torch.ones(2)),
    "made-up gradients refused": lambda auto, x: auto.grad(
        guard(x).sum(), x, allow_unused=False, materialize_grads=True
    ),
    "a batch of another shape": lambda auto, x: auto.grad(guard(x), x, torch.ones(3, 4), is_grads_batched=True),
    "a reentrant checkpoint": lambda auto, x: auto.grad(checkpoint(guard, x, use_reentrant=True).sum(), x),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_pytorch_refuses_is_refused_in_its_words(case, values):
    expected = outcome(lambda: REFUSED[case](torch.autograd, leaf(*values)))
    if expected[0] is None:
        pytest.skip("PyTorch takes it")
    assert outcome(lambda: REFUSED[case](ignoring, leaf(*values))) == expected


# What PyTorch takes; each returns gradients.


def added(auto, x, *args, **options):
    """What `backward` leaves in `.grad`."""
    auto.backward(*args, **options)
    return x.grad


def non_leaf_of_backward(auto, guard, x):
    middle = x * 2
    auto.backward(guard(middle).sum(), inputs=[middle])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return middle.grad, x.grad


def twice(auto, guard, x):
    loss = guard(x).sum()
    auto.backward(loss, retain_graph=True)
    return added(auto, x, loss)


def on_top(auto, guard, x):
    x.grad = before = torch.tensor([10.0, 20.0])
    return added(auto, x, guard(x).sum()) is before, x.grad


ONES, EYE, UNUSED = torch.ones(2), torch.eye(2), torch.ones(1, requires_grad=True)
TAKEN = {
    "one loss": lambda auto, guard, x: added(auto, x, guard(x).sum()),
    "a gradient": lambda auto, guard, x: auto.grad(guard(x), x, torch.tensor([2.0, 3.0])),
    "a gradient that has a graph": lambda auto, guard, x: auto.grad(guard(x), x, UNUSED.expand(2) * 2),
    "several losses with gradients": lambda auto, guard, x: auto.grad(
        [guard(x), (x * x).sum()], x, [ONES, torch.tensor(2.0)]),
    "a leaf as loss": lambda auto, guard, x: added(auto, x, [x, guard(x).sum()], [ONES, None]),
    "a constant among the losses": lambda auto, guard, x: added(
        auto, x, [guard(x).sum(), torch.tensor(2.0)], [torch.tensor(3.0), None]),
    "the old name of the gradient": lambda auto, guard, x: added(auto, x, guard(x), grad_variables=ONES),
    "positions": lambda auto, guard, x: auto.grad(guard(x).sum(), x, None, False, False, True, None, False, False),
    "a non-leaf input": lambda auto, guard, x: auto.grad(guard(middle := x * 2).sum(), [middle, x]),
    "a non-leaf input of backward": non_leaf_of_backward,
    "an edge as input": lambda auto, guard, x: auto.grad(guard(middle := x * 2).sum(), get_gradient_edge(middle)),
    "edges with gradients": lambda auto, guard, x: auto.grad(
        [get_gradient_edge(guard(x)), guard(x).sum()], [x], [ONES, None]),
    "an unused input made up": lambda auto, guard, x: auto.grad(guard(x).sum(), [x, UNUSED], materialize_grads=True),
    "the same input twice": lambda auto, guard, x: auto.grad(guard(x).sum(), [x, x]),
    "the graph kept": twice,
    "a gradient there already": on_top,
    "a batch": lambda auto, guard, x: auto.grad(guard(x), x, EYE, is_grads_batched=True),
    "a batch with an unused input": lambda auto, guard, x: auto.grad(
        guard(x), [x, UNUSED], EYE, is_grads_batched=True, allow_unused=True),
}  # fmt: skip
if EDGES:
    TAKEN["an edge as loss of backward"] = lambda auto, guard, x: added(auto, x, get_gradient_edge(guard(x).sum()))
if DICTS:
    TAKEN |= {
        "a dict": lambda auto, guard, x: auto.grad(guard(x).sum(), {"x": x, "again": x}),
        "a dict for backward": lambda auto, guard, x: added(auto, x, guard(x).sum(), inputs={"x": x}),
        "a generator of inputs": lambda auto, guard, x: added(auto, x, guard(x).sum(), inputs=(t for t in [x])),
    }


@pytest.mark.parametrize("case", TAKEN)
def test_what_pytorch_takes_is_taken(case, values):
    theirs, told_theirs = outcome(lambda: TAKEN[case](torch.autograd, guard_twice, leaf(*values)))
    ours, told_ours = outcome(lambda: TAKEN[case](ignoring, guard, leaf(*values)))
    assert seen(ours) == seen(theirs) and told_ours == told_theirs


def test_the_signatures_are_pytorchs():
    def form(function):
        return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]

    assert form(ignoring.backward) == form(torch.autograd.backward)
    assert form(ignoring.grad)[:-1] == form(torch.autograd.grad)
    assert form(ignoring.grad)[-1] == ("ignored", inspect.Parameter.KEYWORD_ONLY, "zero")


# Graphs that can't be gone through.


def again(auto, x):
    loss = guard(x).sum()
    auto.backward(loss)
    auto.backward(loss)


def changed_in_place(auto, x):
    y = x.exp()
    loss = torch.where(x < 50, y, torch.zeros(2)).sum()
    y.mul_(2)
    auto.backward(loss)


def changed_in_place_at_a_slice(auto, x):
    y = x * 1
    y[:1].relu_()
    y[1:].mul_(2)
    auto.backward(y.sum())


def inside_a_transform(auto, x):
    torch.func.grad(lambda x: (auto.backward(guard(x).sum()), x.sum())[1])(x.detach())


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (again, "second time"),
        (changed_in_place, "inplace"),
        (changed_in_place_at_a_slice, "inplace"),
        (inside_a_transform, "functorch"),
    ],
)
def test_a_graph_that_cannot_be_gone_through_raises_pytorchs_error(broken, words, values, capfd):
    expected = outcome(lambda: broken(torch.autograd, leaf(*values)))
    assert expected[0][0] is RuntimeError and words in expected[0][1]
    assert outcome(lambda: broken(ignoring, leaf(*values))) == expected
    assert "callback" not in capfd.readouterr().err  # PyTorch says so if a profiler was not ended


def test_an_unknown_word_for_ignored_is_refused():
    x = leaf(1.0)
    with pytest.raises(ValueError, match='\'nan\'.*"zero".*"masked"'):
        ignoring.grad(guard(x).sum(), x, ignored="nan")


# ignored="masked"


def test_masked_gradients_of_unused_inputs_and_batches():
    x, y = leaf(1.0, 100.0), leaf(2.0)
    assert ignoring.grad(guard(x).sum(), [x, y], allow_unused=True, ignored="masked")[1] is None
    _, made_up = ignoring.grad(guard(x).sum(), [x, y], materialize_grads=True, ignored="masked")
    assert made_up.get_mask().tolist() == [False]
    (batch,) = ignoring.grad(guard(x), x, torch.eye(2), is_grads_batched=True, ignored="masked")
    assert batch.get_mask().tolist() == [[True, False], [True, False]]


def test_a_clean_graph_gives_an_exact_mask_too():
    x = leaf(1.0, 2.0)
    if DICTS:
        assert ignoring.grad((x * 2)[:1].sum(), {"x": x}, ignored="masked")["x"].get_mask().tolist() == [True, False]
    (masked,) = ignoring.grad((x * 2)[:1].sum(), x, ignored="masked")
    assert isinstance(masked, MaskedTensor)
    assert (masked.get_mask().tolist(), masked.get_data().tolist()) == ([True, False], [2.0, 0.0])


def test_a_sparse_gradient_has_no_mask():
    weight = torch.ones(3, 2, requires_grad=True)
    loss = torch.nn.functional.embedding(torch.tensor([0]), weight, sparse=True).sum()
    with pytest.raises(ValueError, match="masked.*dense"):
        ignoring.grad(loss, weight, ignored="masked")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.complex64, torch.complex128])
def test_a_dtype_without_masked_tensors_is_refused_before_the_graph_is_freed(dtype):
    x = torch.tensor([1.0, 2.0], dtype=dtype, requires_grad=True)
    loss = (x * x)[:1].abs().sum()
    for inputs in (x, [get_gradient_edge(x)], *([{"x": x}] if DICTS else [])):
        with pytest.raises(ValueError, match=f"masked.*{dtype}; use"):
            ignoring.grad(loss, inputs, ignored="masked")
    assert ignoring.grad(loss, x)[0].tolist() == [2, 0]


def test_the_nodes_are_those_that_the_engine_runs_and_no_hook_runs_to_find_them():
    for seed in range(40):
        draw, ran = random.Random(seed), set()
        tensors = [leaf(1.0), leaf(2.0)]
        for _ in range(12):
            tensors.append(draw.choice(tensors) * draw.choice(tensors))
        roots = [draw.choice(tensors[2:]) for _ in range(2)]
        inputs = draw.sample(tensors, 2) if seed % 2 else tensors[:1]
        for root in roots:
            root.register_hook(lambda _, ran=ran: ran.add("a root"))
        for node in graph_from(roots):
            node.register_prehook(lambda _, ran=ran, node=node: ran.add(node))
        needed = needed_from(roots, inputs)
        assert not ran
        torch.autograd.grad(roots, inputs, allow_unused=True)
        captured = {tensor.grad_fn for tensor in inputs} | {node for node in needed if not node.next_functions}
        assert ran - {"a root"} <= set(needed) <= ran | captured


# A pass for some inputs looks at the nodes that PyTorch's engine runs for them, and at no others.


def test_a_selection_that_no_gradient_was_asked_for_still_selects_in_the_second_pass():
    x, factor = leaf(1.0, -1.0, 4.0), leaf(1.0, 1.0, 1.0)
    loss = torch.where(x < 2, factor * torch.where(x > 0, x.sqrt(), 0.0), 0.0).sum()
    (slope,) = ignoring.grad(loss, [factor], create_graph=True)
    assert ignoring.grad(slope.sum(), [x])[0].tolist() == [0.5, 0.0, 0.0]


# What a pass costs: the operators that run one by one on tensors with masks.


def of_rows(function, *shape):
    """A function of two rows, of which the first is NaN and ignored."""
    rows = torch.cat([torch.full((1, *shape), math.nan), torch.ones(1, *shape)]).requires_grad_()
    return lambda: ignoring.backward(function(rows)[1:].sum())


def hessian(second=2.0):
    x = torch.tensor([1.0, second], requires_grad=True)
    (slopes,) = ignoring.grad(torch.where(x < 3, x.exp() * x.sin(), 0).sum(), [x], create_graph=True)
    return lambda: [ignoring.grad(slope, [x], retain_graph=True) for slope in slopes]


def all_selected(select):
    x = torch.arange(6.0).view(2, 3).requires_grad_()
    loss = select(x.std(1)).sum()
    return lambda: ignoring.backward(loss)


@pytest.mark.parametrize(
    ("program", "operators"),
    [
        (lambda: all_selected(lambda x: torch.where(x > 0, x, 0)), 0),
        (lambda: all_selected(lambda x: x.masked_fill(x == 0, 0)), 0),
        (lambda: of_rows(torch.nn.Linear(8, 4), 8), 0),
        (lambda: of_rows(torch.nn.Linear(1200, 600), 1200), 6),  # to repair a product of this size costs more
        (lambda: of_rows(lambda x: x @ x.mT, 3, 3), 0),
        (lambda: of_rows(lambda x: x * x.exp() / (x + 1), 4), 0),
        (lambda: of_rows(lambda x: torch._weight_norm(x, torch.ones(2, 1), 0), 4), 1),
        (hessian, 0),
        (lambda: hessian(math.nan), 8),  # products with what the first pass saved
    ],
)
@pytest.mark.skipif(not TELLS_OF_HOOKS, reason="saved tensors may have hooks, so they are not read again")
def test_few_operators_run_one_by_one(program, operators, monkeypatch):
    backward, follow, seen = program(), Cotangent.handler, []
    monkeypatch.setattr(Cotangent, "handler", staticmethod(lambda op, *rest: (seen.append(op), follow(op, *rest))[1]))
    backward()
    assert len(seen) == operators, seen


@pytest.mark.parametrize("mode", [FlopCounterMode, FakeTensorMode])
def test_a_mode_of_dispatch_may_be_on_if_a_number_was_saved(mode):
    """In a mode, a number that PyTorch has saved is a Python number."""
    with FakeTensorMode() if mode is FakeTensorMode else FlopCounterMode(display=False):
        x = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
        ignoring.backward((0.5 * x).softmax(1)[0, 0])
    assert x.grad.shape == x.shape and (mode is FakeTensorMode or x.grad[0].all())
