"""Kernels that do what others do: their gradients next to those of used elements alone, in float64."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from zero_or_nan import ignoring
from zero_or_nan.ignoring import Cotangent

aten = torch.ops.aten
inf, nan = math.inf, math.nan


def assert_close(found, right):
    for ours, reference in zip(found, right, strict=True):
        torch.testing.assert_close(ours.double(), reference, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("poison", [nan, inf, 0.0])
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_weight_norm(dim, poison):
    """Each row of weights by its own length; that of a row of zeros is 0, and is divided by."""
    torch.manual_seed(0)
    clean, scale = torch.randn(4, 4, 4), torch.rand(4).view([4 if d == dim else 1 for d in range(3)])
    kept = torch.tensor([0, 1, 3])
    weights = clean.index_fill(dim, torch.tensor([2]), poison).requires_grad_()
    scales = scale.clone().requires_grad_()
    ignoring.backward(torch._weight_norm(weights, scales, dim).index_select(dim, kept).sin().sum())
    exact, exact_scale = (t.double().requires_grad_() for t in (clean, scale))
    rows, lengths = exact.index_select(dim, kept), exact_scale.index_select(dim, kept)
    norms = rows.square().sum([d for d in range(3) if d != dim], keepdim=True).sqrt()
    (rows * lengths / norms).sin().sum().backward()
    assert_close([weights.grad, scales.grad], [exact.grad, exact_scale.grad])


def test_a_layer_with_weight_norm():
    torch.manual_seed(0)
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))
    with torch.no_grad():
        layer.parametrizations.weight.original1[1] = 0
    x = torch.randn(4, 3)
    ignoring.backward(layer(x)[:, 0].square().sum())
    found = [p.grad.clone() for p in layer.parameters()]
    small = nn.utils.parametrizations.weight_norm(nn.Linear(3, 1).double())
    small.load_state_dict({name: value[:1].double() for name, value in layer.state_dict().items()})
    small(x.double()).square().sum().backward()
    assert_close([t[:1] for t in found], [p.grad for p in small.parameters()])
    assert not any(t[1:].any() for t in found)


def test_what_is_used_of_a_weight_norm_stays_nan():
    weights = torch.tensor([[3.0, 4.0], [0.0, 0.0]], requires_grad=True)
    ignoring.backward(torch._weight_norm(weights, torch.ones(2, 1, requires_grad=True), 0).sum())
    assert weights.grad[0].isfinite().all() and weights.grad[1].isnan().all()


@pytest.mark.parametrize("poison", [nan, inf, 0.0, -1.0])
@pytest.mark.parametrize("kind", ["hidden elements", "rows"])
def test_softmax_with_a_mask(kind, poison):
    torch.manual_seed(0)
    clean = torch.rand(2, 2, 4, 4) + 0.5
    hidden = torch.zeros(clean.shape, dtype=torch.bool)
    hidden[..., 3] = hidden[0, :, 1, 0] = True
    rows = torch.ones(2, dtype=torch.bool)
    spoilt = clean.masked_fill(hidden, poison)
    if kind == "rows":
        spoilt[1], rows[1] = poison, False
    x = spoilt.requires_grad_()
    ignoring.backward(torch._masked_softmax(x.sqrt(), hidden, -1, 2)[rows].square().sum())
    exact = clean.double().requires_grad_()
    exact.sqrt().masked_fill(hidden, -inf).softmax(-1)[rows].square().sum().backward()
    assert_close([x.grad], [exact.grad])


@pytest.mark.parametrize("poison", [nan, inf, 3e38])
def test_a_convolution_in_time(poison):
    torch.manual_seed(0)
    clean = [torch.randn(5, 3, 4), torch.randn(2, 4, 3), torch.randn(3)]
    given = [t.clone().requires_grad_() for t in clean]
    given[0].data[:, 2] = poison
    ignoring.backward(torch.conv_tbc(*given, 1)[:, :2].square().sum())
    image, kernel, bias = (t.double().requires_grad_() for t in clean)
    F.conv1d(image[:, :2].permute(1, 2, 0), kernel.permute(2, 1, 0), bias, padding=1).square().sum().backward()
    assert_close([t.grad for t in given], [image.grad, kernel.grad, bias.grad])


@pytest.mark.parametrize("poison", [nan, inf, 3e38])
@pytest.mark.parametrize("wanted", [(True, True, True), (False, True, False)])
def test_a_convolution_by_the_name_of_its_kernel(poison, wanted):
    torch.manual_seed(0)
    clean = [torch.randn(3, 2, 5, 5), torch.randn(4, 2, 3, 3), torch.randn(4)]
    given = [t.clone() for t in clean]
    given[0][2] = poison
    given = [t.requires_grad_(w) for t, w in zip(given, wanted, strict=True)]
    image, kernel, bias = given
    ignoring.backward(torch._C._nn.thnn_conv2d(image, kernel, (3, 3), bias, 2, 1)[:2].square().sum())
    exact = [t.double().requires_grad_() for t in clean]
    F.conv2d(exact[0][:2], exact[1], exact[2], 2, 1).square().sum().backward()
    assert_close(
        [t.grad for t in given if t.requires_grad],
        [t.grad for t, w in zip(exact, wanted, strict=True) if w],
    )


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
