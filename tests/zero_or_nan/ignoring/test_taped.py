"""The backward of a user's Function without a record, followed by a tape of its operators.

Each program has a weight that all rows share, and the loss drops the bad rows. The right gradient is that of another
text of the same function, in float64, by plain PyTorch, on the good rows alone.
"""

import gc
import threading
import weakref
from functools import partial
from math import inf, nan

import pytest
import torch
from telling import told
from torch import Tensor
from users_functions import GOOD, PROGRAMS, apply_after, function, gradient_of, saving

from zero_or_nan import ignoring
from zero_or_nan.functions.graph import TELLS_OF_HOOKS
from zero_or_nan.ignoring.extras.tape.memory import same_bits
from zero_or_nan.ignoring.extras.tape.tape import Tape


def rows_with(bad):
    return torch.cat([GOOD[:2], torch.full((1, 4), bad), GOOD[2:]])


@pytest.mark.parametrize("bad", [nan, inf])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_users_backward_is_followed(name, bad):
    """The row that the loss drops is bad. If the loss uses the bad row, the gradient stays undefined."""
    program, in_other_words = PROGRAMS[name]
    right = gradient_of(in_other_words, GOOD, slice(None), torch.autograd.backward, torch.float64)
    for number, used in ((bad, [0, 1, 3]), (bad, [0, 1, 2]), (3.0, [0, 1, 3])):
        rows = rows_with(number)
        ours, messages = told(lambda rows=rows, used=used: gradient_of(program, rows, used, ignoring.backward))
        plain = gradient_of(program, rows, used, torch.autograd.backward)
        kept = plain.isfinite()
        assert torch.equal(ours[kept], plain[kept]) and bool(kept.all()) is (number == 3.0)
        if used == [0, 1, 3]:
            assert messages == [] and type(ours) is Tensor
            torch.testing.assert_close(ours.double(), right, rtol=1e-5, atol=1e-5)
        else:
            assert torch.equal(ours.isfinite(), kept)


NOT_FOLLOWED = {"layer_norm": "mixes ignored elements"}
if not TELLS_OF_HOOKS:  # before PyTorch 2.10, a record may keep a tensor that was written to
    NOT_FOLLOWED["in place on its own clone"] = "keeps a tensor besides its results"


@pytest.mark.filterwarnings("ignore:Using backward")
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_users_backward_that_is_recorded_is_followed_unless_it_mixes_elements(name):
    program, in_other_words = PROGRAMS[name]
    backward = partial(ignoring.backward, create_graph=True)
    ours, messages = told(lambda: gradient_of(program, rows_with(nan), [0, 1, 3], backward))
    if name in NOT_FOLLOWED:
        assert len(messages) == 1 and NOT_FOLLOWED[name] in messages[0]
    else:
        right = gradient_of(in_other_words, GOOD, slice(None), torch.autograd.backward, torch.float64)
        torch.testing.assert_close(ours.double(), right, rtol=1e-5, atol=1e-5)
        assert not messages


@pytest.mark.parametrize(("used", "at_nan"), [(1, 0.0), (2, nan)])
def test_the_gradient_of_a_recorded_gradient_leaves_out_what_was_ignored(used, at_nan):
    """Of x ** 3 / 3, whose derivatives are x ** 2 and 2 * x."""
    cubed = function(saving(lambda x: x**3 / 3), lambda ctx, g: g * ctx.saved_tensors[0] ** 2)
    x = torch.tensor([2.0, nan], requires_grad=True)
    (slope,), _ = told(lambda: ignoring.grad(cubed(x)[:used].sum(), x, create_graph=True))
    (second,) = ignoring.grad(slope.sum(), x)
    torch.testing.assert_close(torch.stack([slope, second]), torch.tensor([[4.0, at_nan]] * 2), equal_nan=True)


def test_sums_into_new_zeros_are_sums_of_what_was_added():
    """As the tokens of experts come back to their places: a place to which nothing was sent has a sum of nothing."""

    def backward(ctx, gradient):
        x, chosen = ctx.saved_tensors
        return torch.zeros_like(x).index_add_(0, chosen, gradient * x[chosen].exp()), None

    def program(x, w):
        dispatched = function(saving(lambda x, chosen: x[chosen].exp()), backward)
        return dispatched(x * w, torch.tensor([3, 0, 2, 0, 1]))

    rows = torch.cat([GOOD, torch.full((1, 4), inf)])
    ours, messages = told(lambda: gradient_of(program, rows, [1, 2, 3, 4], ignoring.backward))
    right = gradient_of(lambda x, w: (x * w)[[0, 2, 0, 1]].exp(), GOOD, slice(None), torch.autograd.backward)
    torch.testing.assert_close(ours, right)
    assert messages == []
    used, _ = told(lambda: gradient_of(program, rows, [0, 1], ignoring.backward))
    assert not used.isfinite().any()


def test_new_zeros_that_something_multiplies_count():
    """They may be a convention: the gradient of `std` of equal numbers is one."""

    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        deviation = x.std(-1, keepdim=True)
        return torch.where(deviation > 0, gradient[:, None] * x / deviation, torch.zeros_like(x))

    x, std = torch.zeros(2, 3, requires_grad=True), function(saving(lambda x: x.std(-1)), backward)
    _, (message,) = told(lambda: ignoring.backward(std(x.sqrt())[:1].sum()))
    assert x.grad[0].isnan().all() and "Users (it may select, and has no record)" in message


def test_without_ignored_elements_the_code_may_select_all_the_same():
    x = torch.tensor([4.0, 0.0], requires_grad=True)
    root = function(saving(torch.sqrt), lambda ctx, gradient: gradient / (2 * ctx.saved_tensors[0].sqrt()))
    _, (message,) = told(lambda: ignoring.backward(root(x).sum()))
    assert x.grad.tolist() == [0.25, inf] and "Users (it may select, and has no record)" in message


# What no tape can see: then the node is opaque, and a warning says so.


def by_kernel(into):
    """As a kernel in C++ writes, in PyTorch's eyes: without an operator."""

    def backward(ctx, g):
        out, product = into(g), g * ctx.saved_tensors[0].exp()
        with torch.utils._python_dispatch._disable_current_modes(), torch._C.DisableTorchFunction():
            out.copy_(product)
        return out + 0 * g

    return backward


def into_what_it_saved(ctx, g):
    with torch.no_grad():
        ctx.saved_tensors[0].data.exp_().mul_(g)
    return g


def kept_in_an_attribute(ctx, g):
    KEPT.append(g * ctx.saved_tensors[0].exp())
    return g


KEPT: list = []


def if_any(ctx, g):
    result = g * ctx.saved_tensors[0].exp()
    return torch.zeros_like(result) if result.isnan().any() else result


def by_shape(ctx, g):
    result = g * ctx.saved_tensors[0].exp()
    picked = result[~result.isnan()]
    return torch.zeros_like(g) + picked.sum()


def in_a_thread(ctx, g):
    found, x = [], ctx.saved_tensors[0].detach()
    thread = threading.Thread(target=lambda: found.append(g * x.exp()))
    thread.start()
    thread.join()
    return found[0] + g


OPAQUE = {
    "item": lambda ctx, g: g + ctx.saved_tensors[0].exp() * g[2, 0].item(),
    "a kernel into zeros": by_kernel(torch.zeros_like),
    "out=": lambda ctx, g: torch.mul(g, ctx.saved_tensors[0].exp(), out=torch.empty_like(g)),
    "what it saved": into_what_it_saved,
    "an attribute": kept_in_an_attribute,
    "a branch": if_any,
    "a shape": by_shape,
    "random numbers": lambda ctx, g: torch.normal(g * ctx.saved_tensors[0].exp(), 1.0),
    "nan_to_num": lambda ctx, g: torch.nan_to_num(g * ctx.saved_tensors[0].exp(), nan=7.0),
    "other memory": lambda ctx, g: (g * ctx.saved_tensors[0].exp()).resize_(g.numel()).resize_(g.shape),
    "another thread": in_a_thread,
}


@pytest.mark.filterwarnings("ignore:Using backward")
@pytest.mark.parametrize(
    ("name", "create_graph"), [*((name, False) for name in OPAQUE), ("an attribute", True), ("a branch", True)]
)
def test_what_no_tape_can_see_is_told_of(name, create_graph):
    program = apply_after(torch.exp, OPAQUE[name])
    torch.manual_seed(0)
    backward = partial(ignoring.backward, create_graph=create_graph)
    _, messages = told(lambda: gradient_of(program, rows_with(inf), [0, 1, 3], backward))
    KEPT.clear()
    (message,) = messages
    assert "could not follow Users" in message
    assert ("without an operator" in message) is name.startswith("a kernel")


# What the user's code sees, and what stays.


def test_the_users_code_runs_once_on_plain_tensors_and_leaves_nothing():
    seen = []

    def backward(ctx, gradient):
        seen.append([type(gradient), type(gradient * 2), type(torch.zeros(2)), torch.is_grad_enabled()])
        ctx.result = weakref.ref(gradient * 2)
        print(gradient, file=SILENT)
        return gradient * (1 + torch.rand_like(gradient)) * ctx.saved_tensors[0].exp()

    class SILENT:
        write = staticmethod(lambda text: None)

    torch.manual_seed(0)
    drawn, after = torch.rand(2), torch.rand(1)
    torch.manual_seed(0)
    x = torch.tensor([1.0, inf], requires_grad=True)
    y = function(saving(torch.exp), backward)(x)
    _, messages = told(lambda: ignoring.backward(y[:1].sum(), retain_graph=True))
    assert messages == [] and x.grad.tolist() == [pytest.approx(2.718281828 * (1 + drawn[0].item())), 0]
    assert torch.equal(torch.rand(1), after)  # the random numbers are those of plain PyTorch
    assert seen == [[Tensor, Tensor, Tensor, False]]
    assert vars(y.grad_fn).keys() == {"result"} and y.grad_fn.result() is None
    assert torch._C._len_torch_dispatch_stack() == 0 and torch._C._len_torch_function_stack() == 0
    gc.collect()
    assert not [one for one in gc.get_objects() if type(one) is Tape]


def test_an_error_of_the_users_code_is_its_own_and_leaves_nothing():
    def backward(ctx, gradient):
        raise ValueError("mine")

    x = torch.tensor([1.0, inf], requires_grad=True)
    y = function(saving(torch.exp), backward)(x)
    with pytest.raises(ValueError, match="mine"):
        ignoring.backward(y[:1].sum())
    assert vars(y.grad_fn) == {}
    assert torch._C._len_torch_dispatch_stack() == 0 and torch._C._len_torch_function_stack() == 0


def test_memory_that_the_users_code_lets_go_is_forgotten(monkeypatch):
    most = []
    add = Tape._add
    monkeypatch.setattr(Tape, "_add", lambda self, *args: (most.append(len(self._memory)), add(self, *args))[1])

    def backward(ctx, gradient):
        for _ in range(1000):
            gradient = gradient * 1.0
        return gradient * ctx.saved_tensors[0].exp()

    x = torch.tensor([1.0, inf], requires_grad=True)
    ignoring.backward(function(saving(torch.exp), backward)(x)[:1].sum())
    assert x.grad[1] == 0 and len(most) > 1000 and max(most) < 200


@pytest.mark.parametrize("size", [4, 40_000])
def test_few_and_many_elements_have_the_same_bits_if_each_has(size):
    a = torch.full((2, size), nan)
    a[1, 1] = 0.0
    for sign, is_same in ((1, True), (-1, False)):
        b = a * torch.ones(2, size).index_fill(0, torch.tensor([1]), sign)
        b[b.isnan()] = nan
        assert same_bits(a, b) is same_bits(a.mT, b.mT) is is_same
