"""`backward` and `grad` take what PyTorch's own take, give what they give and raise what they raise."""

import collections
import inspect
import math
import warnings

import pytest
import torch
from tensors import leaf
from torch import Tensor
from torch.autograd.graph import get_gradient_edge
from torch.masked import MaskedTensor

from zero_or_nan import ignoring
from zero_or_nan.ignoring.engine import passes

nan, inf = math.nan, math.inf
DICTS = "dict" in str(inspect.signature(torch.autograd.grad).parameters["inputs"])
EDGES = "GradEdge" in str(inspect.signature(torch.autograd.backward).parameters["tensors"])


@pytest.fixture
def careful(monkeypatch):
    """No graph is thought harmless."""
    monkeypatch.setattr(passes, "is_safe", lambda *_: False)


def guard(x):
    """A selection whose plain gradient is NaN where x >= 50 in float32 overflows."""
    return torch.where(x < 50, x.exp(), torch.zeros_like(x))


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


def equal(a, b):
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return type(a) is type(b) is Tensor and a.dtype is b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, (tuple, list)):
        return type(a) is type(b) and len(a) == len(b) and all(map(equal, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    return a == b


# What PyTorch refuses; each is called with `torch.autograd` and with `ignoring`.

REFUSED = {
    "a vector without a gradient": lambda auto, x: auto.backward(guard(x)),
    "a vector without a gradient, grad": lambda auto, x: auto.grad(guard(x), x),
    "a gradient of another shape": lambda auto, x: auto.backward(guard(x), torch.ones(3)),
    "a gradient of another shape, grad": lambda auto, x: auto.grad(guard(x), x, torch.ones(2, 2)),
    "a broadcastable gradient": lambda auto, x: auto.backward(guard(x), torch.ones(1)),
    "a complex gradient": lambda auto, x: auto.backward(guard(x), torch.ones(2, dtype=torch.complex64)),
    "a number as gradient": lambda auto, x: auto.backward(guard(x).sum(), 1.0),
    "numbers as gradients": lambda auto, x: auto.backward([guard(x).sum()], [1.0]),
    "an array as gradient": lambda auto, x: auto.grad(guard(x), x, torch.ones(2).numpy()),
    "too many gradients": lambda auto, x: auto.backward([guard(x).sum()], [torch.tensor(1.0), torch.tensor(1.0)]),
    "too few gradients": lambda auto, x: auto.grad([guard(x).sum(), guard(x).sum()], x, [torch.tensor(1.0)]),
    "None for a vector": lambda auto, x: auto.backward([guard(x).sum(), guard(x)], [torch.tensor(1.0), None]),
    "a number as loss": lambda auto, x: auto.backward(3),
    "a number as loss, grad": lambda auto, x: auto.grad(3.0, x),
    "None as loss": lambda auto, x: auto.backward(None),
    "None as loss, grad": lambda auto, x: auto.grad(None, x),
    "numbers as losses": lambda auto, x: auto.backward([1.0, 2.0]),
    "a dict of losses": lambda auto, x: auto.backward({"loss": guard(x).sum()}),
    "a dict of losses, grad": lambda auto, x: auto.grad({"loss": guard(x).sum()}, x),
    "no loss": lambda auto, x: auto.backward([]),
    "no loss, grad": lambda auto, x: auto.grad([], x),
    "a loss without a graph": lambda auto, x: auto.backward(guard(x.detach()).sum()),
    "a loss without a graph, grad": lambda auto, x: auto.grad(guard(x.detach()).sum(), x),
    "an integer loss": lambda auto, x: auto.backward(torch.tensor(1)),
    "a complex loss": lambda auto, x: auto.backward(guard(x).sum() * 1j),
    "an input without a graph": lambda auto, x: auto.grad(guard(x).sum(), torch.ones(2)),
    "an input as number": lambda auto, x: auto.grad(guard(x).sum(), 1.0),
    "an input as None": lambda auto, x: auto.grad(guard(x).sum(), [None]),
    "an unused input": lambda auto, x: auto.grad(guard(x).sum(), [x, leaf(1.0)]),
    "no inputs": lambda auto, x: auto.grad(guard(x).sum(), []),
    "no inputs, backward": lambda auto, x: auto.backward(guard(x).sum(), inputs=[]),
    "a mapping of inputs": lambda auto, x: auto.grad(guard(x).sum(), collections.UserDict(x=x)),
    "a mapping of inputs, backward": lambda auto, x: auto.backward(guard(x).sum(), inputs=collections.UserDict(x=x)),
    "an input that backward can't take": lambda auto, x: auto.backward(guard(x).sum(), inputs=torch.ones(2)),
    "made-up gradients refused": lambda auto, x: auto.grad(
        guard(x).sum(), x, allow_unused=False, materialize_grads=True
    ),
    "both names of the gradient": lambda auto, x: auto.backward(
        guard(x), torch.ones(2), grad_variables=torch.ones(2)
    ),
    "a batch of another shape": lambda auto, x: auto.grad(guard(x), x, torch.ones(3, 4), is_grads_batched=True),
    "a batch of nothing given": lambda auto, x: auto.grad(guard(x).sum(), x, is_grads_batched=True),
    "an unknown argument": lambda auto, x: auto.backward(guard(x).sum(), nothing=1),
}  # fmt: skip


@pytest.mark.parametrize("values", [(1.0, 2.0), (1.0, 100.0)], ids=["clean", "contaminated"])
@pytest.mark.parametrize("case", REFUSED)
def test_what_pytorch_refuses_is_refused_in_its_words(case, values):
    expected = outcome(lambda: REFUSED[case](torch.autograd, leaf(*values)))
    if expected[0] is None:
        pytest.skip("PyTorch takes it")
    assert outcome(lambda: REFUSED[case](ignoring, leaf(*values))) == expected


@pytest.mark.parametrize("case", REFUSED)
def test_the_careful_pass_refuses_in_the_same_words(case, careful):
    expected = outcome(lambda: REFUSED[case](torch.autograd, leaf(1.0, 2.0)))
    if expected[0] is None:
        pytest.skip("PyTorch takes it")
    assert outcome(lambda: REFUSED[case](ignoring, leaf(1.0, 2.0))) == expected


# What PyTorch takes; each returns gradients.


def accumulated(auto, guard, x, **options):
    auto.backward(guard(x).sum(), **options)
    return x.grad


def with_dict(auto, guard, x):
    auto.backward(guard(x).sum(), inputs={"x": x})
    return x.grad


def edge_as_input(auto, guard, x):
    middle = x * 2
    return auto.grad(guard(middle).sum(), get_gradient_edge(middle))


def edge_as_root(auto, guard, x):
    edge = get_gradient_edge(guard(x).sum())
    return auto.grad(edge, x)


def edge_as_root_of_backward(auto, guard, x):
    auto.backward(get_gradient_edge(guard(x).sum()))
    return x.grad


def edges_with_gradients(auto, guard, x):
    return auto.grad([get_gradient_edge(guard(x)), guard(x).sum()], [x], [torch.ones(2), None])


def non_leaf(auto, guard, x):
    middle = x * 2
    return auto.grad(guard(middle).sum(), [middle, x])


def non_leaf_backward(auto, guard, x):
    middle = x * 2
    auto.backward(guard(middle).sum(), inputs=[middle])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return middle.grad, x.grad


def twice(auto, guard, x):
    loss = guard(x).sum()
    auto.backward(loss, retain_graph=True)
    auto.backward(loss)
    return x.grad


def on_top(auto, guard, x):
    x.grad = torch.tensor([10.0, 20.0])
    before = x.grad
    auto.backward(guard(x).sum())
    return before is x.grad, x.grad


def root_is_leaf(auto, guard, x):
    auto.backward([x, guard(x).sum()], [torch.ones(2), None])
    return x.grad


def constant_root(auto, guard, x):
    auto.backward([guard(x).sum(), torch.tensor(2.0)], [torch.tensor(3.0), None])
    return x.grad


def gradient_with_a_graph(auto, guard, x):
    return auto.grad(guard(x), x, torch.ones(2, requires_grad=True) * 2)


TAKEN = {
    "one loss": accumulated,
    "one loss, grad": lambda auto, guard, x: auto.grad(guard(x).sum(), x),
    "a list of one": lambda auto, guard, x: auto.grad([guard(x).sum()], [x]),
    "a generator of losses": lambda auto, guard, x: auto.grad((t for t in [guard(x).sum()]), (t for t in [x])),
    "a generator for backward": lambda auto, guard, x: (auto.backward(t for t in [guard(x).sum()]), x.grad),
    "a generator of gradients": lambda auto, guard, x: auto.grad([guard(x)], x, (t for t in [torch.ones(2)])),
    "a gradient": lambda auto, guard, x: auto.grad(guard(x), x, torch.tensor([2.0, 3.0])),
    "a gradient of another dtype": lambda auto, guard, x: auto.grad(guard(x), x, torch.ones(2, dtype=torch.float64)),
    "an expanded gradient": lambda auto, guard, x: auto.grad(guard(x), x, torch.ones(1).expand(2)),
    "a gradient that has a graph": gradient_with_a_graph,
    "several losses": lambda auto, guard, x: auto.grad([guard(x).sum(), (x * x).sum()], x),
    "several losses with gradients": lambda auto, guard, x: auto.grad(
        [guard(x), (x * x).sum()], x, [torch.ones(2), torch.tensor(2.0)]
    ),
    "the same loss twice": lambda auto, guard, x: auto.grad([loss := guard(x).sum(), loss], x),
    "a leaf as loss": root_is_leaf,
    "a constant among the losses": constant_root,
    "a loss of one entry": lambda auto, guard, x: auto.grad(guard(x).sum().reshape(1, 1), x),
    "the old name of the gradient": lambda auto, guard, x: (
        auto.backward(guard(x), grad_variables=torch.ones(2)), x.grad),
    "keywords": lambda auto, guard, x: auto.grad(
        outputs=guard(x).sum(), inputs=x, grad_outputs=None, retain_graph=None),
    "positions": lambda auto, guard, x: auto.grad(guard(x).sum(), x, None, False, False, True, None, False, False),
    "positions of backward": lambda auto, guard, x: (
        auto.backward(guard(x), torch.ones(2), False, False, None, x), x.grad),
    "only_inputs": lambda auto, guard, x: auto.grad(guard(x).sum(), x, only_inputs=False),
    "inputs": lambda auto, guard, x: accumulated(auto, guard, x, inputs=x),
    "inputs in a list": lambda auto, guard, x: accumulated(auto, guard, x, inputs=[x]),
    "a non-leaf input": non_leaf,
    "a non-leaf input of backward": non_leaf_backward,
    "an edge as input": edge_as_input,
    "an unused input allowed": lambda auto, guard, x: auto.grad(guard(x).sum(), [x, leaf(1.0)], allow_unused=True),
    "an unused input made up": lambda auto, guard, x: auto.grad(guard(x).sum(), [x, leaf(1.0)], materialize_grads=True),
    "the same input twice": lambda auto, guard, x: auto.grad(guard(x).sum(), [x, x]),
    "the graph kept": twice,
    "a gradient there already": on_top,
    "a batch": lambda auto, guard, x: auto.grad(guard(x), x, torch.eye(2), is_grads_batched=True),
    "a batch of scalars": lambda auto, guard, x: auto.grad(
        guard(x).sum(), x, torch.tensor([1.0, 2.0]), is_grads_batched=True),
    "a batch with an unused input": lambda auto, guard, x: auto.grad(
        guard(x), [x, leaf(1.0)], torch.eye(2), is_grads_batched=True, allow_unused=True
    ),
    **({"an edge as loss": edge_as_root, "edges with gradients": edges_with_gradients}),
    **({"an edge as loss of backward": edge_as_root_of_backward} if EDGES else {}),
    **({"a dict": lambda auto, guard, x: auto.grad(guard(x).sum(), {"x": x, "again": x}),
        "a dict for backward": with_dict,
        "a generator of inputs": lambda auto, guard, x: (
            auto.backward(guard(x).sum(), inputs=(t for t in [x])), x.grad)}
       if DICTS else {}),
}  # fmt: skip


@pytest.mark.parametrize("values", [(1.0, 2.0), (1.0, 100.0)], ids=["clean", "contaminated"])
@pytest.mark.parametrize("case", TAKEN)
def test_what_pytorch_takes_is_taken(case, values):
    theirs, told_theirs = outcome(lambda: TAKEN[case](torch.autograd, guard_twice, leaf(*values)))
    ours, told_ours = outcome(lambda: TAKEN[case](ignoring, guard, leaf(*values)))
    assert equal(ours, theirs) and told_ours == told_theirs


@pytest.mark.parametrize("case", TAKEN)
def test_the_careful_pass_gives_the_same(case, careful):
    theirs, told_theirs = outcome(lambda: TAKEN[case](torch.autograd, guard, leaf(1.0, 2.0)))
    ours, told_ours = outcome(lambda: TAKEN[case](ignoring, guard, leaf(1.0, 2.0)))
    assert equal(ours, theirs) and told_ours == told_theirs


def test_the_signatures_are_pytorchs():
    def form(function):
        return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]

    assert form(ignoring.backward) == form(torch.autograd.backward)
    assert form(ignoring.grad)[:-1] == form(torch.autograd.grad)
    assert form(ignoring.grad)[-1] == ("ignored", inspect.Parameter.KEYWORD_ONLY, "zero")


# Graphs that can't be gone through.


@pytest.mark.parametrize("values", [(1.0, 2.0), (1.0, 100.0)], ids=["clean", "contaminated"])
def test_a_second_pass_over_a_freed_graph_raises_pytorchs_error(values):
    def again(auto):
        loss = guard(leaf(*values)).sum()
        auto.backward(loss)
        auto.backward(loss)

    expected = outcome(lambda: again(torch.autograd))
    assert expected[0][0] is RuntimeError and "second time" in expected[0][1]
    assert outcome(lambda: again(ignoring)) == expected


def test_an_input_beside_what_was_freed_is_fixed():
    x = leaf(1.0, 2.0)
    below = x.exp()
    torch.autograd.backward(below.sum())
    middle = below.detach().requires_grad_() * 40
    (gradient,) = ignoring.grad(guard(middle).sum() + below.sum(), middle)
    assert gradient.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("values", [(1.0, 2.0), (1.0, 100.0)], ids=["clean", "contaminated"])
def test_a_saved_tensor_changed_in_place_raises_pytorchs_error(values):
    def changed(auto):
        x = leaf(*values)
        y = x.exp()
        loss = torch.where(x < 50, y, torch.zeros(2)).sum()
        y.mul_(2)
        auto.backward(loss)

    expected = outcome(lambda: changed(torch.autograd))
    assert expected[0][0] is RuntimeError and "inplace" in expected[0][1]
    assert outcome(lambda: changed(ignoring)) == expected


def test_the_graph_is_freed_after_a_careful_pass_and_kept_on_demand():
    x = leaf(1.0, 100.0)
    loss = guard(x).sum()
    ignoring.grad(loss, x, retain_graph=True)
    ignoring.grad(loss, x)
    with pytest.raises(RuntimeError, match="second time"):
        ignoring.grad(loss, x)


def test_a_failed_pass_leaves_nothing_behind():
    x = leaf(1.0, 100.0)
    with pytest.raises(RuntimeError):
        ignoring.backward(guard(x))
    assert x.grad is None
    ignoring.backward(guard(x).sum())
    assert x.grad.tolist() == [pytest.approx(math.e), 0.0]


def test_inside_a_functorch_transform_it_is_refused_as_by_pytorch():
    def inner(auto):
        def loss(x):
            auto.backward(guard(x).sum())
            return x.sum()

        return torch.func.grad(loss)(torch.tensor([1.0, 100.0]))

    expected = outcome(lambda: inner(torch.autograd))
    assert expected[0][0] is RuntimeError
    assert outcome(lambda: inner(ignoring)) == expected


def test_an_unknown_word_for_ignored_is_refused():
    x = leaf(1.0)
    with pytest.raises(ValueError, match='\'nan\'.*"zero".*"masked"'):
        ignoring.grad(guard(x).sum(), x, ignored="nan")


# What a leaf gets.


def test_a_gradient_is_a_plain_tensor_of_its_own():
    x = leaf(1.0, 100.0)
    ignoring.backward(guard(x).sum())
    assert type(x.grad) is Tensor and not x.grad.requires_grad and x.grad.grad_fn is None
    x.grad.mul_(2).add_(1)
    assert x.grad.tolist() == [pytest.approx(2 * math.e + 1), 1.0]


@pytest.mark.parametrize("form", [
    lambda x: x, lambda x: x.t(), lambda x: x.reshape(2, 3, 1, 1).to(memory_format=torch.channels_last),
    lambda x: x.repeat(2, 2)[::2, ::2],
])  # fmt: skip
def test_a_gradient_lies_in_memory_as_pytorchs(form):
    layouts = []
    for auto in (torch.autograd, ignoring):
        x = form(torch.tensor([[1.0, 2.0, 100.0], [3.0, 200.0, 4.0]])).detach().requires_grad_()
        auto.backward((guard(x) * 2).sum())
        layouts.append((x.grad.shape, x.grad.stride(), x.grad.is_contiguous()))
    assert layouts[0] == layouts[1]


def test_a_gradient_is_added_to_in_place():
    x = leaf(1.0, 100.0)
    ignoring.backward(guard(x).sum())
    first = x.grad
    ignoring.backward(guard(x).sum())
    assert x.grad is first and x.grad.tolist() == [pytest.approx(2 * math.e), 0.0]


def test_a_gradient_does_not_share_memory_with_the_one_given():
    given = torch.ones(2)
    x = leaf(1.0, 100.0)
    ignoring.backward([x, guard(x).sum()], [given, None])
    assert given.tolist() == [1.0, 1.0] and x.grad.data_ptr() != given.data_ptr()


def test_the_given_gradient_is_not_changed():
    given = torch.tensor([2.0, nan])
    x = leaf(1.0, 100.0)
    ignoring.grad(guard(x), x, given)
    assert given[0] == 2 and given[1].isnan() and type(given) is Tensor


def test_zeros_of_the_given_gradient_are_numbers():
    x = leaf(100.0, 1.0)
    (gradient,) = ignoring.grad(x.exp(), x, torch.tensor([0.0, 1.0]))
    assert gradient[0].isnan() and gradient[1] == pytest.approx(math.e)


# ignored="masked"


def masks(loss, x):
    (result,) = ignoring.grad(loss, x, ignored="masked")
    assert isinstance(result, MaskedTensor)
    return result.get_mask().tolist(), result.get_data().masked_fill(~result.get_mask(), 0).tolist()


@pytest.mark.parametrize("number", [1.0, nan])
def test_a_number_that_a_hook_puts_where_the_loss_ignored_is_not_masked(number):
    x = leaf(1.0, 100.0)
    loss = guard(x).sum()
    x.register_hook(lambda gradient: gradient + torch.tensor([0.0, number]))
    assert masks(loss, x)[0] == [True, True]


T, F = True, False
SELECTIONS = {
    "where": (lambda x: torch.where(x < 50, x * 0, 7.0), [T, T, T, F]),
    "indexing": (lambda x: (x * 0)[torch.tensor([0, 1, 1])], [T, T, F, F]),
    "bool indexing": (lambda x: (x * 0)[x < 2.5], [T, T, F, F]),
    "slicing": (lambda x: (x * 0)[1:3], [F, T, T, F]),
    "steps": (lambda x: (x * 0)[::2], [T, F, T, F]),
    "select": (lambda x: (x * 0)[2], [F, F, T, F]),
    "narrow": (lambda x: (x * 0).narrow(0, 1, 2), [F, T, T, F]),
    "masked_fill": (lambda x: (x * 0).masked_fill(x > 2.5, 1.0), [T, T, F, F]),
    "masked_select": (lambda x: (x * 0).masked_select(x > 2.5), [F, F, T, T]),
    "masked_scatter": (lambda x: (x * 0).masked_scatter(x > 2.5, torch.ones(2)), [T, T, F, F]),
    "nansum": (lambda x: torch.where(x < 50, x * 0, x * nan).nansum(), [T, T, T, F]),
    "nan_to_num": (lambda x: torch.where(x < 50, x * 0, x * nan).nan_to_num(), [T, T, T, F]),
    "clamp": (lambda x: x.clamp(1.5, 50), [F, T, T, F]),
    "clamp_max": (lambda x: x.clamp(max=2.5), [T, T, F, F]),
    "relu": (lambda x: (2.5 - x).relu(), [T, T, F, F]),
    "max": (lambda x: x.max(), [F, F, F, T]),
    "max(dim)": (lambda x: x.max(0).values, [F, F, F, T]),
    "amin": (lambda x: x.amin(), [T, F, F, F]),
    "maximum": (lambda x: torch.maximum(x, torch.tensor(2.5)), [F, F, T, T]),
    "sort": (lambda x: x.sort(descending=True).values[:1], [F, F, F, T]),
    "topk": (lambda x: x.topk(2).values, [F, F, T, T]),
    "kthvalue": (lambda x: x.kthvalue(2).values, [F, T, F, F]),
    "median": (lambda x: x.median(), [F, T, F, F]),
    "gather": (lambda x: x.gather(0, torch.tensor([1, 1])), [F, T, F, F]),
    "take": (lambda x: x.take(torch.tensor([3])), [F, F, F, T]),
    "index_select": (lambda x: x.index_select(0, torch.tensor([3])), [F, F, F, T]),
    "triu": (lambda x: x.reshape(2, 2).triu(), [T, T, F, T]),
    "tril": (lambda x: x.reshape(2, 2).tril(), [T, F, T, T]),
    "diagonal": (lambda x: x.reshape(2, 2).diagonal(), [T, F, F, T]),
    "trace": (lambda x: x.reshape(2, 2).trace(), [T, F, F, T]),
    "crop": (lambda x: torch.nn.functional.pad(x, (-1, -1)), [F, T, T, F]),
    "split": (lambda x: x.split(2)[1], [F, F, T, T]),
    "unbind": (lambda x: x.unbind()[1], [F, T, F, F]),
    "max_pool": (lambda x: torch.nn.functional.max_pool1d(x[None], 2), [F, T, F, T]),
    "index_fill": (lambda x: x.index_fill(0, torch.tensor([0]), 1.0), [F, T, T, T]),
    "index_copy": (lambda x: x.index_copy(0, torch.tensor([0]), torch.ones(1)), [F, T, T, T]),
    "scatter": (lambda x: x.scatter(0, torch.tensor([0]), 1.0), [F, T, T, T]),
    "slice_scatter": (lambda x: x.slice_scatter(torch.ones(2), 0, 1, 3), [T, F, F, T]),
    "select_scatter": (lambda x: x.select_scatter(torch.tensor(1.0), 0, 1), [T, F, T, T]),
    "multiplication by 0": (lambda x: x * torch.tensor([1.0, 0.0, 0.0, 1.0]), [T, T, T, T]),
    "multiplication by a bool": (lambda x: x * (x < 2.5), [T, T, T, T]),
    "floor": (lambda x: x.floor(), [T, T, T, T]),
}  # fmt: skip


@pytest.mark.parametrize("name", SELECTIONS)
def test_the_mask_tells_an_ignored_entry_from_a_zero(name):
    select, used = SELECTIONS[name]
    x = leaf(1.0, 2.0, 3.0, 100.0)
    mask, _ = masks(select(x).sum(), x)
    assert mask == used


def assigned(x, places):
    y = x * 0
    y[places] = 1.0
    return y


@pytest.mark.parametrize("places, used", [
    (slice(1, 3), [T, F, F, T]), (0, [F, T, T, T]), (torch.tensor([1, 2]), [T, F, F, T]),
    (torch.tensor([T, F, F, T]), [F, T, T, F]), (..., [F, F, F, F]),
])  # fmt: skip
def test_the_mask_of_an_assignment(places, used):
    x = leaf(1.0, 2.0, 3.0, 100.0)
    y = assigned(x, places)
    if not y.requires_grad:
        pytest.skip("the graph is gone")
    assert masks(y.sum(), x)[0] == used


def test_what_was_never_reached_and_made_up_is_ignored():
    x, y = leaf(1.0), leaf(2.0)
    of_x, of_y = ignoring.grad(guard(x).sum(), [x, y], materialize_grads=True, ignored="masked")
    assert of_x.get_mask().tolist() == [True] and of_y.get_mask().tolist() == [False]


def test_masked_gradients_of_unused_inputs_and_batches():
    x, y = leaf(1.0, 100.0), leaf(2.0)
    assert ignoring.grad(guard(x).sum(), [x, y], allow_unused=True, ignored="masked")[1] is None
    (batch,) = ignoring.grad(guard(x), x, torch.eye(2), is_grads_batched=True, ignored="masked")
    assert batch.get_mask().tolist() == [[True, False], [True, False]]


@pytest.mark.skipif(not DICTS, reason="this PyTorch takes no dict")
def test_masked_gradients_of_a_dict():
    x = leaf(1.0, 100.0)
    result = ignoring.grad(guard(x).sum(), {"x": x}, ignored="masked")
    assert result["x"].get_mask().tolist() == [True, False]


def test_a_clean_graph_gives_an_exact_mask_too():
    x = leaf(1.0, 2.0)
    assert masks((x * 2)[:1].sum(), x) == ([True, False], [2.0, 0.0])


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


# Warnings.


def test_a_warning_points_at_the_callers_line():
    class Foreign(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return torch.from_numpy(g.numpy() * 2)

    for call in (lambda loss, x: ignoring.backward(loss), lambda loss, x: ignoring.grad(loss, x)):
        x = leaf(1.0, 100.0)
        loss = guard(Foreign.apply(x.exp())).sum()
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            call(loss, x)
        assert [(w.category, w.filename) for w in told] == [(UserWarning, __file__)]
        assert "Foreign" in str(told[0].message)
