"""What can't be followed gets plain PyTorch's gradient, and one warning names it if something is lost by it."""

import math
import sys
from functools import partial
from math import inf

import pytest
import torch
from telling import Exponential, told
from tensors import guard
from torch.utils.checkpoint import checkpoint
from users_functions import function

from zero_or_nan import ignoring
from zero_or_nan.ignoring.engine import plan
from zero_or_nan.ignoring.engine.masked_pass import Pass


class Doubled(torch.autograd.Function):
    forward = staticmethod(lambda ctx, x: x * 2)
    backward = staticmethod(lambda ctx, gradient: {torch.Tensor: gradient * 2}[type(gradient)])  # it is a plain tensor


def leaf(second=100.0):
    return torch.tensor([1.0, second], requires_grad=True)


@pytest.mark.parametrize("way", [
    lambda f, x: f(x), partial(checkpoint, use_reentrant=True), partial(checkpoint, use_reentrant=False),
], ids=["called", "in a reentrant checkpoint", "in a checkpoint"])  # fmt: skip
@pytest.mark.parametrize("function, is_lost", [(Doubled, False), (Exponential, True)])
def test_a_users_function_is_named_once_if_something_is_lost(function, is_lost, way):
    for second, warned in ((2.0, False), (100.0, is_lost)):
        x = leaf(second)
        y = way(lambda y: function.apply(function.apply(y * 1)), x.exp().log())
        _, messages = told(lambda x=x, y=y: ignoring.backward(torch.where(x < 1.5, y, 0.0).sum()))
        assert x.grad[0] > 2 and bool(x.grad[1].isnan()) == warned
        assert [message.count(function.__name__) for message in messages] == [1] * warned
        assert all("calls numpy" in each and each.endswith("/operators-of-your-own.html") for each in messages)


def derivative(backward, forward=lambda ctx, x, w: x * w.detach()):
    """A Function of x and w that nobody has recorded."""
    return function(forward, backward)


def accumulating(ctx, gradient):
    """As a fused kernel does: the gradient of w is written past PyTorch."""
    ctx.w.main_grad = gradient * ctx.w.main
    return gradient, None


def kept(ctx, x, w):
    ctx.w = w
    with torch.enable_grad():
        ctx.inner = (x.detach() * w * w.main).sum(0, keepdim=True).expand(2)
    return ctx.inner.detach()


def ran_backward(ctx, gradient):
    """As a checkpoint does: the gradient of w does not come out here."""
    torch.autograd.backward(ctx.inner, gradient)
    return gradient, torch.zeros(2)


# What a Function does behind a selection, what is done ahead of it, and whether that loses anything.
UNRECORDED = {
    "finite": (derivative(lambda ctx, g: (g * 2, g)), lambda x: x, False),
    "NaN": (derivative(lambda ctx, g: (g * torch.tensor([1.0, inf]), g)), lambda x: x, False),
    "0 times inf later": (derivative(lambda ctx, g: (g * 1, g)), lambda x: ((x - 1).sqrt() * 2).sin() + 1, False),
    "0 times inf later, after NumPy": (
        derivative(lambda ctx, g: (torch.from_numpy(g.numpy() * 1), g)), lambda x: (x - 1).sqrt(), True),
    "no gradient": (derivative(accumulating, kept), lambda x: x, True),
    "a pass of its own": (derivative(ran_backward, kept), lambda x: x, True),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Using backward")
@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("name", UNRECORDED)
def test_a_users_function_is_told_of_if_something_is_lost(name, create_graph):
    function, ahead, is_lost = UNRECORDED[name]
    x, w = (torch.tensor([2.0, 1.0], requires_grad=True) for _ in range(2))
    w.main = torch.tensor([1.0, inf])
    _, messages = told(lambda: ignoring.backward(function(ahead(x), w)[:1].sum(), create_graph=create_graph))
    assert len(messages) == is_lost
    assert all("could not follow Users (" in message for message in messages)
    assert is_lost or x.grad.isfinite().all()


def test_a_rule_of_the_library_that_fails_is_told_of_as_a_bug(monkeypatch):
    monkeypatch.setattr(plan, "USES_TRANSFERS", False)  # every derivative is followed operator by operator
    monkeypatch.setitem(ignoring.RULES, torch.ops.aten.mul, lambda op, *args: {}["a mistake"])
    monkeypatch.setattr(Pass, "raises_bugs", False)
    x = leaf()
    _, (message,) = told(lambda: ignoring.backward(guard(x).sum()))
    assert x.grad[0] == pytest.approx(math.e) and x.grad[1].isnan()
    assert all(part in message for part in ("aten::mul", "KeyError", "report"))


@pytest.mark.parametrize("compiler", [False, True], ids=["alone", "beside the compiler"])
def test_a_warning_names_the_users_line(compiler, monkeypatch, recwarn):
    import torch._dynamo  # noqa: F401

    if not compiler:
        monkeypatch.delitem(sys.modules, "torch._dynamo")
    x = leaf()
    loss = Exponential.apply(x.exp())[:1].sum()
    for call in (
        lambda: ignoring.backward(loss, retain_graph=True),
        lambda: ignoring.grad(loss, [x], ignored="masked", retain_graph=True),
    ):
        recwarn.clear()
        call()
        (warning,) = [one for one in recwarn if str(one.message).startswith("ignoring")]
        assert (warning.category, warning.filename) == (UserWarning, __file__)
        assert warning.lineno == call.__code__.co_firstlineno
