"""Images sampled at the places of a grid: a cotangent goes back to the pixels around its place, and to the place.

The weights of the pixels depend only on the place, which all channels of an image share. So a place may be used in one
channel and ignored in another. Then the kernel runs on each channel as an image of its own, and the place is 0 in each
channel that ignores it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...masks.cotangent import Cotangent, is_finite, mask_of, prefer_exact, unwrap, zero_ignored
from ...masks.mask import anywhere, full, only
from ..conditions import MODERATE
from ..registry import function, rule
from .spreading import probe

function("CudnnGridSampler GridSampler2D GridSampler3D", selects=True, safe_if=MODERATE)

aten = torch.ops.aten

BILINEAR, ZEROS = 0, 0
"""PyTorch's number of an interpolation mode, and of a padding mode."""


@rule("grid_sampler_2d_backward", "grid_sampler_3d_backward")
def grid_sampler_backward(
    op: Any, grad: Any, image: Any, grid: Any, mode: int, padding: int, corners: bool, wanted: Any
) -> Any:
    """The gradients of the image and of the grid."""
    value, image, grid = unwrap(grad), unwrap(image), unwrap(grid)
    used = full(mask_of(grad), value)
    how = mode, padding, corners
    exact = op(value, image, _within_memory(grid, used, *how), *how, wanted)
    places = only(used.flatten(0, 1).unsqueeze(-1), grid.repeat_interleave(image.shape[1], 0))

    def by_channel(cotangent: Tensor, pixels: Tensor, wanted: Any) -> tuple[Any, Tensor]:
        each = [tensor.flatten(0, 1).unsqueeze(1) for tensor in (cotangent, pixels)]
        to_image, to_grid = op(*each, places, *how, wanted)
        return to_image if to_image is None else to_image.view(image.shape), to_grid.view(*used.shape, -1)

    masked = exact if is_finite(exact) else by_channel(value, image, wanted)
    results: list[Any] = [None, None]
    if wanted[0]:
        read = by_channel(probe(used, value), torch.zeros_like(image), [True, False])[0].isnan()
        # PyTorch clips NaN and inf to a pixel, but to another pixel in forward than in backward. So all pixels count.
        astray = (used & _is_moderate(grid).logical_not().unsqueeze(1)).flatten(2).any(2)
        read |= astray.view(*astray.shape, *[1] * (image.dim() - 2))
        results[0] = prefer_exact(exact[0], Cotangent(masked[0], read))
    if masked is exact:
        results[1] = Cotangent(exact[1], used.any(1).unsqueeze(-1).expand(grid.shape))
    else:
        results[1] = prefer_exact(exact[1], zero_ignored(masked[1], used.unsqueeze(-1)).sum(1))
    return tuple(results)


def _within_memory(grid: Tensor, used: Tensor, mode: int, padding: int, corners: bool) -> Tensor:
    """The grid with 0 at places that are ignored and not moderate, for a kernel that a NaN makes read out of bounds.

    This is the CPU kernel that interpolates between four pixels. It clips a place to the image and then reads there
    without a check, but a clipped NaN is still NaN (pytorch#24823). A coordinate that overflows becomes NaN if the
    padding reflects it.
    """
    if grid.device.type != "cpu" or grid.shape[-1] != 2 or mode != BILINEAR or padding == ZEROS:
        return grid
    return only((_is_moderate(grid) | used.any(1)).unsqueeze(-1), grid)


def _is_moderate(grid: Tensor) -> Tensor:
    """True for each place whose coordinates stay finite when they are converted to pixels."""
    return torch.all(grid.abs() < torch.finfo(grid.dtype).max ** 0.5, -1)


@rule("cudnn_grid_sampler_backward")
def cudnn_grid_sampler_backward(op: Any, image: Any, grid: Any, grad: Any) -> Any:
    """The same by cuDNN, which pads with zeros and aligns the corners."""
    exact = op(unwrap(image), unwrap(grid), unwrap(grad))
    by_pytorch = aten.grid_sampler_2d_backward.default
    return prefer_exact(
        exact, grid_sampler_backward(by_pytorch, grad, image, grid, BILINEAR, ZEROS, True, [True, True])
    )


@rule("cudnn_affine_grid_generator_backward")
def affine_grid_backward(op: Any, grad: Any, n: int, c: int, h: int, w: int) -> Any:
    """The gradient of the matrix: sums over all places of an image, with constant weights."""
    value = op(unwrap(grad), n, c, h, w)
    return Cotangent(value, anywhere(full(mask_of(grad), unwrap(grad)), (1, 2)).unsqueeze(-1).expand(value.shape))
