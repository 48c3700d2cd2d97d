"""Images sampled on a grid: what is ignored reaches neither the image nor the grid; what is used stays."""

from math import inf, nan

import pytest
import torch
from alone import assert_fixed, assert_right, gradients
from torch.nn.functional import grid_sample

from zero_or_nan import ignoring
from zero_or_nan.functions.families import sampling
from zero_or_nan.ignoring import Cotangent

aten = torch.ops.aten

WAYS = [
    (2, "bilinear", "zeros", False),
    (2, "bilinear", "border", True),
    (2, "bilinear", "reflection", False),
    (2, "nearest", "border", False),
    (2, "bicubic", "zeros", True),
    (2, "bicubic", "reflection", False),
    (3, "bilinear", "zeros", True),
    (3, "bilinear", "border", False),
    (3, "nearest", "reflection", True),
]


def samples(dims, seed=0):
    """Two images of three channels, and places in them, some of them outside.

    Of an even width: of an odd one the address that NaN becomes overflows back into memory.
    """
    generator = torch.Generator().manual_seed(seed)
    image = torch.randn((2, 3, *(5,) * (dims - 1), 6), generator=generator)
    return image, torch.rand((2, *(3,) * dims, dims), generator=generator) * 2.4 - 1.2


def sampler(way):
    return lambda image, grid: grid_sample(image, grid, *way[1:])


def leads_out_of_memory(way, poison):
    """Whether PyTorch's kernel crashes on such a place, so that plain backward can't be asked (pytorch#24823)."""
    dims, mode, padding, _ = way
    return dims == 2 and mode == "bilinear" and (padding == "reflection" or padding == "border" and poison != poison)


@pytest.mark.parametrize("poison", [nan, 3e38])
@pytest.mark.parametrize("way", WAYS)
def test_pixels_that_no_used_output_reads_don_t_matter(way, poison):
    image, grid = samples(way[0])
    pixels = torch.zeros(image.shape, dtype=torch.bool)
    pixels[:, 1, 2, 2] = True  # one pixel, or row of pixels, in one channel
    pixels[1, 2] = True

    def sampled(number):
        return grid_sample(image.masked_fill(pixels, number), grid, *way[1:])

    used = (sampled(0.7) == sampled(-2.7)) & (sampled(0.7) == sampled(poison))
    assert used.any() and not used.all(1).all()
    poisoned, clean = (image.masked_fill(pixels, number) for number in (poison, 0.3))
    plain = assert_fixed(sampler(way), [poisoned, grid], [clean, grid], used, 1e-3, 1e-4)
    if poison != 3e38 and way[1] != "nearest":  # whose gradient of the grid is 0
        assert not plain[1].isfinite().all()


@pytest.mark.parametrize("poison", [nan, inf, 3e38])
@pytest.mark.parametrize("way", WAYS)
def test_an_ignored_place_does_not_matter(way, poison):
    """Where plain PyTorch's process would die of it, ours does not. If one channel uses the place, that one suffers."""
    image, grid = samples(way[0])
    poisoned, used = grid.clone(), torch.ones((2, 3, *grid.shape[1:-1]), dtype=torch.bool)
    poisoned[0, 1], used[0, :, 1] = poison, False
    crashes = leads_out_of_memory(way, poison)

    def found(method, places, dtype=torch.float32):
        return gradients(method, lambda *given: sampler(way)(*given).where(used, 0), (image, places), ..., dtype)

    ours, right = found(ignoring.grad, poisoned), found(torch.autograd.grad, grid, torch.float64)
    assert_right(ours, ours if crashes else found(torch.autograd.grad, poisoned), right, 1e-3, 1e-4)
    if crashes or poison == 3e38:
        return
    used[0, 2, 1] = True
    ours, plain = found(ignoring.grad, poisoned), found(torch.autograd.grad, poisoned)
    torch.testing.assert_close(ours[0][0, :2], right[0][0, :2].float(), rtol=1e-3, atol=1e-4)
    assert torch.equal(ours[1].isfinite(), plain[1].isfinite())
    used[0, :, 1] = True
    all_used = found(torch.autograd.grad, poisoned)
    torch.testing.assert_close(ours[0][0, 2], all_used[0][0, 2], rtol=0, atol=0, equal_nan=True)


def test_a_place_counts_where_a_channel_uses_it():
    """Though its gradient is 0, in an image of one colour."""
    image = torch.ones(2, 3, 5, 6)
    image[0, 0, 0] = nan
    grid = torch.full((2, 1, 2, 2), 0.1).requires_grad_()  # away from that row
    output = grid_sample(image, grid, align_corners=False)
    (masked,) = ignoring.grad(output[0, 1, 0, 0], grid, ignored="masked")
    assert masked.get_mask().tolist() == [[[[True, True], [False, False]]], [[[False, False], [False, False]]]]


@pytest.mark.parametrize("poison", [nan, inf, 3e38])
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_an_image_counts_that_is_used_at_a_place_that_is_no_number(mode, poison):
    """In three dimensions PyTorch's forward clips NaN to the last pixel, and its backward forgets that it was read."""
    image, grid = samples(3)
    grid[0, 0, 0, 0] = poison
    z = torch.zeros_like(image).requires_grad_()
    output = grid_sample(image + z.sqrt(), grid, mode, "border", False)
    (ours,) = ignoring.grad(output[0, 1, 0, 0, 0] + output[1, 2].sum(), z)
    assert not ours[0, 1].isfinite().any()
    assert not ours[0, [0, 2]].any() and not ours[1, :2].any()


def test_the_other_library_is_fixed_by_pytorchs_own_kernel():
    """On a processor there is no cuDNN; something in its place gives what it would."""
    image, grid = samples(2)
    image[0, 1] = nan
    mask = torch.ones((2, 3, 3, 3), dtype=torch.bool)
    mask[0, 1] = False
    cotangent = Cotangent(torch.ones(mask.shape).masked_fill(~mask, 0), mask)

    def cudnn(image, grid, grad):
        assert type(grad) is torch.Tensor
        return tuple(1.001 * x for x in aten.grid_sampler_2d_backward(grad, image, grid, 0, 0, True, [True, True]))

    ours = sampling.cudnn_grid_sampler_backward(cudnn, image, grid, cotangent)
    exact = cudnn(image, grid, cotangent.value)
    right = aten.grid_sampler_2d_backward(cotangent.value, image.nan_to_num(0.5), grid, 0, 0, True, [True, True])
    assert_right([part.value for part in ours], exact, right, 2e-3, 1e-3)
    assert not exact[1].isfinite().all()
    assert not ours[0].mask[0, 1].any() and ours[1].mask.all()
