"""Forward mode, `vmap` and the transforms of `torch.func`: inside of the loss, and around a pass."""

import math
import re
from math import inf, nan

import pytest
import torch
import torch.autograd.forward_ad as fw
import torch.nn.functional as F
from telling import told
from tensors import guard
from torch import Tensor
from torch._vmap_internals import _vmap
from torch.autograd import functional
from torch.func import grad, hessian, jacfwd, jvp, vmap
from torch.testing._internal.logging_tensor import LoggingTensor

from zero_or_nan import ignoring

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # PyTorch's forward mode calls it

USED = 2
WEIGHTS = torch.tensor([1.0, -2.0], dtype=torch.float64)

FUNCTIONS = {
    "where": (lambda v: torch.where(v > 0, v.log() * v, 0), [1.0, 2.0, 0.0, -1.0]),
    "softmax": (lambda v: torch.stack([v, v * v], 1).softmax(1)[:, 0], [1.0, 2.0, inf, nan]),
    "gelu": (F.gelu, [1.0, 2.0, inf, nan]),
}


def dual(function, x, tangent):
    with fw.dual_level():
        return fw.unpack_dual(function(fw.make_dual(x, tangent))).tangent


# Derivatives by PyTorch: of a function of x, or of the weighted sum s of what is used of it.
DERIVATIVES = {
    "hessian": lambda f, s, x, t: hessian(s)(x)[:USED, :USED],
    "jvp": lambda f, s, x, t: jvp(f, (x,), (t,))[1][:USED],
    "jvp of grad": lambda f, s, x, t: jvp(grad(s), (x,), (t,))[1][:USED],
    "functional.hvp": lambda f, s, x, t: functional.hvp(s, x, t, create_graph=True)[1][:USED],
}


def prepared(function, values):
    x = torch.tensor(values, dtype=torch.float64, requires_grad=True)
    tangent = torch.full((len(values),), 7.0, dtype=torch.float64)
    tangent[:USED] = WEIGHTS
    return (lambda v: (function(v)[:USED] * WEIGHTS).sum()), x, tangent


@pytest.mark.parametrize("derivative", DERIVATIVES)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_derivatives_in_the_loss_are_those_of_the_used_elements_alone(function, derivative):
    function, values = FUNCTIONS[function]

    def slope(auto, values):
        total, x, tangent = prepared(function, values)
        found = DERIVATIVES[derivative](function, total, x, tangent)
        numbers = torch.arange(1.0, found.numel() + 1, dtype=found.dtype).reshape(found.shape)
        return auto.grad((found * numbers).sum(), x)[0]

    try:
        alone, plain = slope(torch.autograd, values[:USED]), slope(torch.autograd, values)
    except RuntimeError as refusal:  # PyTorch has no such derivative
        with pytest.raises(RuntimeError, match=re.escape(str(refusal)[:60])):
            slope(ignoring, values)
        return
    ours = slope(ignoring, values)
    assert torch.equal(slope(ignoring, values[:USED]), alone)
    torch.testing.assert_close(ours[:USED], alone, rtol=1e-9, atol=0)
    assert not ours[USED:].any()
    finite = plain.isfinite()
    assert torch.equal(ours[finite], plain[finite])


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_tangent_of_a_gradient(function, create_graph):
    function, values = FUNCTIONS[function]

    def tangents(auto, values):
        total, x, tangent = prepared(function, values)
        with fw.dual_level():
            number = fw.make_dual(x, tangent)
            (slope,) = auto.grad(total(number), number, create_graph=create_graph)
            primal, tangent = fw.unpack_dual(slope)
        third = auto.grad((tangent[:USED] * WEIGHTS).sum(), x)[0] if create_graph else torch.zeros(len(values))
        return [primal.detach(), tangent.detach(), third]

    try:
        alone, plain = tangents(torch.autograd, values[:USED]), tangents(torch.autograd, values)
    except RuntimeError:  # PyTorch's softmax has no such derivative
        pytest.skip("PyTorch can't")
    for o, a, p in zip(tangents(ignoring, values), alone, plain, strict=True):
        torch.testing.assert_close(o[:USED], a, rtol=1e-9, atol=1e-9)
        assert not o[USED:].any()
        assert torch.equal(o[p.isfinite()], p[p.isfinite()])


def test_what_a_tangent_that_is_0_everywhere_meets_is_not_used():
    x = torch.tensor([-1.0, 4.0], requires_grad=True)  # floor has no tangent, so the product reads nothing of sqrt
    loss = dual(lambda v: (v.sqrt().floor() * torch.tensor([1.0, 2.0])).sum(), x, torch.ones(2))
    assert ignoring.grad(loss, x)[0].tolist() == [0.0, 0.0]


def test_nan_of_a_tangent_that_was_made_up_is_warned_about():
    x = torch.tensor([1.0, nan], requires_grad=True)
    loss = jacfwd(jacfwd(lambda v: F.softplus(v)[:1].mul(v[:1]).sum()))(x)[:1, :1].sum()
    with pytest.warns(UserWarning, match="could not follow SoftplusBackward"):
        assert ignoring.grad(loss, x)[0].isnan().tolist() == [False, True]


# Around a pass.


VECTORS = torch.tensor([[1.0, 1.0], [2.0, 3.0], [0.0, 1.0]])
OVER = {
    "vmap": lambda of: vmap(of)(VECTORS),
    "vmap of vmap": lambda of: vmap(vmap(of))(VECTORS[None])[0],
}


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("over", OVER)
def test_vmap_over_a_pass_is_a_loop(over, create_graph):
    x = torch.tensor([1.0, 100.0], requires_grad=True)
    y = guard(x)
    rows = OVER[over](lambda v: ignoring.grad(y, x, v, retain_graph=True, create_graph=create_graph)[0])
    assert type(rows) is Tensor and rows.grad_fn is None or create_graph
    assert torch.equal(rows, torch.stack([ignoring.grad(y, x, v, retain_graph=True)[0] for v in VECTORS]))
    if create_graph:
        assert ignoring.grad(rows.sum(), x)[0].tolist() == pytest.approx([3 * math.e, 0.0])


def slope(v):
    return ignoring.grad(guard(v).sum(), v, create_graph=True)[0].sum()


HIDING = {
    "hessian": (lambda x, y: hessian(slope)(x), "torch.func.grad, vjp or jacrev.*same name in ignoring.func"),
    "of the vector": (
        lambda x, y: grad(lambda v: ignoring.grad(y, x, v)[0].sum())(torch.ones(2)), "same name in ignoring.func",
    ),
    "jvp": (lambda x, y: jvp(slope, (x,), (x,)), "torch.func.jvp.*forward mode of torch.autograd.forward_ad"),
    "vmap of the graph": (lambda x, y: vmap(slope)(x[None]), "torch.vmap.*Use torch.vmap over ignoring.func.grad"),
    "functionalize": (
        lambda x, y: torch.func.functionalize(lambda v: ignoring.grad(y, x, v)[0])(torch.ones(2)), "Call it outside",
    ),
}  # fmt: skip


@pytest.mark.parametrize("values", [[1.0, 100.0], [1.0, 2.0]])
@pytest.mark.parametrize("inside", HIDING)
def test_a_transform_that_hides_the_numbers_is_refused(inside, values):
    call, instead = HIDING[inside]
    x = torch.tensor(values, requires_grad=True)
    with pytest.raises(RuntimeError, match=instead):
        call(x, guard(x))


def test_what_does_not_depend_on_the_transformed_numbers_is_no_reason_to_refuse():
    x = torch.tensor([1.0, 100.0], requires_grad=True)
    loss = guard(x).sum()
    slope = grad(lambda v: (v * ignoring.grad(loss, x)[0]).sum())(torch.ones(2))
    assert slope.tolist() == pytest.approx([math.e, 0.0])


@pytest.mark.parametrize("create_graph", [False, True])
def test_what_the_private_vmap_hides_is_warned_about(create_graph):
    x = torch.tensor([1.0, 100.0], requires_grad=True)
    with pytest.warns(UserWarning, match="a tensor inside of torch.vmap"):
        _vmap(lambda v: ignoring.grad(guard(x), x, v, create_graph=create_graph)[0])(torch.ones(1, 2))


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: guard(x * w),
        lambda x, w: (x * w).exp().softmax(0)[:1],
        lambda x, w: F.layer_norm((x * w).exp(), (2,))[:1],
        lambda x, w: (x[:, None] @ w[None]).exp()[:1],
    ],
)
def test_a_plain_cotangent_for_tensors_of_a_subclass(function, create_graph):
    x = LoggingTensor(torch.tensor([1.0, 100.0])).requires_grad_()
    w = torch.tensor([1.0, 2.0], requires_grad=True)
    y = function(x, w)
    plain = torch.autograd.grad(y, [x, w], torch.ones(y.shape), retain_graph=True)
    ours, messages = told(lambda: ignoring.grad(y, [x, w], torch.ones(y.shape), create_graph=create_graph))
    assert all("could not follow" in message for message in messages)
    assert all(type(o) is type(p) for o, p in zip(ours, plain, strict=True))
    assert messages or all(bool(o.elem.isfinite().all()) for o in ours)
