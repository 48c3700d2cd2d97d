"""Images sampled at the places of a grid: a cotangent goes back to the pixels around its place, and to the place.

The weights of the pixels depend on the place alone, and all channels of an image share it. So a place may be used in
one channel and ignored in another: then each channel is an image of its own, with a harmless place where it is ignored.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..conditions import MODERATE
from ..cotangent import Cotangent, is_finite, mask_of, prefer_exact, unwrap, zero_ignored
from ..masks import anywhere, full, only
from ..registry import function, rule
from .spreading import probe

function("CudnnGridSampler GridSampler2D GridSampler3D", selects=True, safe_if=MODERATE)

aten = torch.ops.aten

BILINEAR, ZEROS = 0, 0
"""How PyTorch numbers a way to interpolate, and one to pad."""


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

    def alone(cotangent: Tensor, pixels: Tensor, wanted: Any) -> tuple[Any, Tensor]:
        each = [tensor.flatten(0, 1).unsqueeze(1) for tensor in (cotangent, pixels)]
        to_image, to_grid = op(*each, places, *how, wanted)
        return to_image if to_image is None else to_image.view(image.shape), to_grid.view(*used.shape, -1)

    careful = exact if is_finite(exact) else alone(value, image, wanted)
    results: list[Any] = [None, None]
    if wanted[0]:
        read = alone(probe(used, value), torch.zeros_like(image), [True, False])[0].isnan()
        # PyTorch clips NaN and inf to a pixel, in the forward pass to another one than in backward.
        astray = (used & _is_moderate(grid).logical_not().unsqueeze(1)).flatten(2).any(2)
        read |= astray.view(*astray.shape, *[1] * (image.dim() - 2))
        results[0] = prefer_exact(exact[0], Cotangent(careful[0], read))
    if careful is exact:
        results[1] = Cotangent(exact[1], used.any(1).unsqueeze(-1).expand(grid.shape))
    else:
        results[1] = prefer_exact(exact[1], zero_ignored(careful[1], used.unsqueeze(-1)).sum(1))
    return tuple(results)


def _within_memory(grid: Tensor, used: Tensor, mode: int, padding: int, corners: bool) -> Tensor:
    """The grid with harmless places where nothing is used, for a kernel that NaN leads out of memory.

    That is the one for processors which interpolates between four pixels: it clips a place to the image, expects it to
    be there, and NaN is not (pytorch#24823). A coordinate that overflows on its way becomes NaN by reflection.
    """
    if grid.device.type != "cpu" or grid.shape[-1] != 2 or mode != BILINEAR or padding == ZEROS:
        return grid
    return only((_is_moderate(grid) | used.any(1)).unsqueeze(-1), grid)


def _is_moderate(grid: Tensor) -> Tensor:
    """Which places are numbers that stay finite in pixels."""
    return torch.all(grid.abs() < torch.finfo(grid.dtype).max ** 0.5, -1)


@rule("cudnn_grid_sampler_backward")
def cudnn_grid_sampler_backward(op: Any, image: Any, grid: Any, grad: Any) -> Any:
    """The same by another library, for zeros around an image whose corners are at 1 and -1."""
    exact = op(unwrap(image), unwrap(grid), unwrap(grad))
    by_pytorch = aten.grid_sampler_2d_backward.default
    return prefer_exact(
        exact, grid_sampler_backward(by_pytorch, grad, image, grid, BILINEAR, ZEROS, True, [True, True])
    )


@rule("cudnn_affine_grid_generator_backward")
def affine_grid_backward(op: Any, grad: Any, n: int, c: int, h: int, w: int) -> Any:
    """Both coordinates are sums over an image's places, with constant weights."""
    value = op(unwrap(grad), n, c, h, w)
    return Cotangent(value, anywhere(full(mask_of(grad), unwrap(grad)), (1, 2)).unsqueeze(-1).expand(value.shape))
