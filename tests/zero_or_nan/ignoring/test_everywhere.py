"""In the places where backward runs: dtypes, views, hooks, modes, retained gradients."""

import math

import pytest
import torch
from torch import Tensor

from zero_or_nan import ignoring

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def contaminated(*shape, **options):
    """A leaf whose odd elements overflow in `safe`."""
    values = torch.ones(shape, **options)
    values.view(-1)[1::2] = 1e4 if values.dtype is not torch.float64 else 1e6
    return values.requires_grad_()


def safe(x):
    return torch.where(x.abs() < 50, x.exp(), 0.0)


# Dtypes and views.


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128]
)
def test_every_dtype(dtype, device):
    x = contaminated(4, dtype=dtype, device=device)
    ignoring.backward(safe(x).sum().real if dtype.is_complex else safe(x).sum())
    assert x.grad.dtype is dtype and x.grad.isfinite().all() and x.grad[1] == 0
    assert x.grad[0].item() == pytest.approx(math.e, rel=1e-2)


WRITTEN = {
    "view_as_real": lambda y: torch.view_as_real(y)[0],
    "view_as_complex": lambda y: torch.view_as_complex(torch.view_as_real(y))[0],
    "conj": lambda y: y.conj()[0],
    "diagonal": lambda y: y[None].diagonal(),
}


@pytest.mark.parametrize("overwritten", [0.0, 1.0])
@pytest.mark.parametrize("view", WRITTEN)
def test_what_is_overwritten_through_a_view_is_ignored(view, overwritten):
    """Also where it is finite, and the gradient of something else is not."""
    x = torch.tensor([overwritten, 4.0, 0.0], dtype=torch.float64, requires_grad=True)
    y = torch.complex(x.sqrt(), x)
    WRITTEN[view](y).fill_(3.0)
    ignoring.backward(torch.view_as_real(y[:2]).square().sum())
    assert x.grad.tolist() == [0.0, 9.0, 0.0]


def test_what_is_written_into_a_slice_keeps_its_mask():
    """The slice was overwritten, and what was written there counts."""
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    y = x * 1
    y[0] = x[0] * 0
    (gradient,) = ignoring.grad(torch.where(y < 4, y, 0.0).sum(), x, ignored="masked")
    assert gradient.get_data().tolist() == [[0.0, 0.0], [1.0, 0.0]]
    assert gradient.get_mask().tolist() == [[True, True], [True, False]]


# Hooks of tensors.


@pytest.mark.parametrize("change, factor", [
    (lambda g: g * 2, 2), (lambda g: g.mul_(2), 2), (lambda g: None, 1), (lambda g: g / g.norm(), 1),
    (lambda g: torch.where(g > 0, g * 2, -g), 2), (lambda g: torch.tensor((g.numpy() * 2).tolist()), 2),
    (lambda g: g.reshape(2, 1).t().contiguous()[0], 1), (lambda g: g.double().float(), 1),
])  # fmt: skip
def test_a_hook_may_change_the_gradient_and_what_is_ignored_stays_so(change, factor):
    x = contaminated(2)
    y = x.exp()
    seen = []
    y.register_hook(lambda g: (seen.append(g), change(g))[1])
    ignoring.backward(torch.where(x < 50, y, 0.0).sum())
    (gradient,) = seen
    assert type(gradient) is type(x.grad) is Tensor and x.grad.tolist() == pytest.approx([math.e * factor, 0.0])


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_pass_in_a_mode_without_gradients(mode):
    """Inference tensors have no version that shows what a hook wrote into them: that counts all the same."""
    x = torch.tensor([1.0, 2.0, 100.0], requires_grad=True)
    y = x.exp()
    y.register_hook(lambda g: (g[1:2].fill_(2.0), None)[1])
    loss = torch.where(torch.tensor([True, False, False]), y, 0.0).sum()
    with mode():
        (plain,) = torch.autograd.grad(loss, x, retain_graph=True)
        (masked,) = ignoring.grad(loss, x, retain_graph=True, ignored="masked")
        (ours,) = ignoring.grad(loss, x)
    assert ours.equal(plain.nan_to_num(0)) and plain[2].isnan() and ours.is_inference() == plain.is_inference()
    assert masked.get_mask().tolist() == [True, True, False]


@pytest.mark.parametrize("form", [lambda y: y, lambda y: y.expand(2, 2, 2)])
def test_a_retained_gradient_is_plain_and_not_doubled(form):
    kept = []
    for auto in (torch.autograd, ignoring):
        x = torch.full((2, 2), 100.0, requires_grad=True)
        y = form(x * 1)
        y.retain_grad()
        auto.backward((torch.where(y < 50, y.exp(), 0.0) + 2 * y).sum(), retain_graph=True)
        first = y.grad
        auto.backward((2 * y).sum())
        kept += [first, y.grad]
    assert [type(k) for k in kept] == [Tensor] * 4
    assert (kept[2] == 2).all() and kept[2].stride() == kept[0].stride()
    assert kept[1].isnan().all() and (kept[3] == 4).all()
