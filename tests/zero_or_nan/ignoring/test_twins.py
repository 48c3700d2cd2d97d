"""Kernels that do what others do: their gradients next to those of used elements alone, in float64."""

from math import nan

import pytest
import torch
from alone import assert_close
from torch.nn import functional as F

from zero_or_nan import ignoring
from zero_or_nan.ignoring import Cotangent

aten = torch.ops.aten


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_quantized_with_a_scale_that_is_learnt(axis):
    """Clipped values, among them NaN, are ignored, and so is a channel: its scale is NaN, and its values' root."""
    channels = 1 if axis is None else 3
    x = torch.tensor([[0.25, 4.0, 0.0], [0.16, 1e6, 0.0], [nan, 2.25, 0.5]], requires_grad=True)
    scale, divisor = torch.full((channels,), 0.1).requires_grad_(), torch.ones(channels)
    zero = torch.zeros(channels, requires_grad=True)
    kept = torch.ones(3, 3, dtype=torch.bool)
    if axis is None:
        kept[1] = False
        kept[0, 2] = False
        out = torch._fake_quantize_learnable_per_tensor_affine(x.sqrt(), scale, zero, -8, 8, 1.0)
    else:
        kept.select(axis, 1).fill_(False)
        kept[0, 2] = kept[1, 2] = False
        divisor[1] = scale.data[1] = 0
        out = torch._fake_quantize_learnable_per_channel_affine(x.sqrt(), scale / divisor, zero, axis % 2, -8, 8, 1.0)
    ignoring.backward(out[kept].sum())
    opened = kept & (x.detach().sqrt() < 0.8)
    slopes = torch.where(opened, 0.5 / x.detach().sqrt(), 0.0)
    assert torch.allclose(x.grad, slopes)
    per_entry = torch.where(opened, (out.detach() - x.detach().sqrt()) / 0.1, torch.where(x.isnan(), -8.0, 8.0))
    per_entry = torch.where(kept, per_entry, 0.0).detach()
    wanted = per_entry.sum().view(1) if axis is None else per_entry.sum(1 - axis % 2)
    assert torch.allclose(scale.grad, wanted, atol=1e-4) and zero.grad.isfinite().all()
    assert axis is None or scale.grad[1] == zero.grad[1] == 0


def test_what_is_clipped_is_ignored_where_all_is_used():
    x = torch.tensor([0.25, -1.0], requires_grad=True)
    scale, zero = torch.tensor([0.1]), torch.tensor([0.0])
    ignoring.backward(torch._fake_quantize_learnable_per_tensor_affine(x.sqrt(), scale, zero, -8, 8, 1.0).sum())
    assert x.grad.tolist() == [1.0, 0.0]


def cotangent(value, mask):
    return Cotangent(value * mask, mask.expand(value.shape))


def played(name, kernel, *given):
    """What the rule makes of a kernel of another device, played by this processor."""
    library = torch.library.Library("aten", "IMPL")
    library.impl(name, kernel, "CPU")
    try:
        return getattr(aten, name)(*given)
    finally:
        library._destroy()


def test_a_grid_by_another_library():
    torch.manual_seed(0)
    grad, mask = torch.randn(2, 4, 5, 2), torch.tensor([True, False])

    def kernel(grad, n, c, h, w):
        return aten.affine_grid_generator_backward(grad, [n, c, h, w], True)

    place = torch.zeros(2, 4, 5, 1, dtype=torch.bool)
    place[0, 2, 3] = True
    for used in (mask.view(2, 1, 1, 1), mask, place):  # an image, a coordinate, a place
        result = played("cudnn_affine_grid_generator_backward", kernel, cotangent(grad, used), 2, 3, 4, 5)
        assert torch.equal(result.value, kernel(grad * used, 2, 3, 4, 5))
        wanted = mask.view(1, 2, 1) if used is mask else mask.view(2, 1, 1)
        assert torch.equal(result.mask, wanted.expand(2, 2, 3))


def test_a_batch_norm_by_another_library():
    torch.manual_seed(0)
    images, grad, weight = torch.randn(3, 2, 4), torch.randn(3, 2, 4), torch.rand(2)
    images[:, 1] = nan  # a channel that is ignored
    mean, deviation = images.mean((0, 2)), images.var((0, 2), correction=0)
    saved = mean, (deviation + 1e-5).rsqrt()

    def kernel(images, grad, weight, mean, var, save_mean, save_var, epsilon):
        how = (mean, var, save_mean, save_var, True, epsilon, [True] * 3)
        return aten.native_batch_norm_backward(grad, images, weight, *how)

    mask = torch.tensor([True, False]).view(2, 1)
    given = images, cotangent(grad, mask), weight, None, None, *saved, 1e-5
    to_images, to_weight, to_bias = played("miopen_batch_norm_backward", kernel, *given)
    exact, exact_weight = images[:, :1].double().requires_grad_(), weight[:1].double().requires_grad_()
    bias = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    (F.batch_norm(exact, None, None, exact_weight, bias, True) * grad[:, :1]).sum().backward()
    assert_close(
        [to_images.value[:, :1], to_weight.value[:1], to_bias.value[:1]], [exact.grad, exact_weight.grad, bias.grad]
    )
    assert not (to_images.value[:, 1].any() or to_weight.value[1] or to_bias.value[1])
    assert to_images.mask[:, 0].all() and not to_images.mask[:, 1].any()
