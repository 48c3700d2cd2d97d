"""The functions of PyTorch whose costs are measured, each at three sizes: a cost has to grow as the work grows."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from operator import methodcaller
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, linalg, nn

from zero_or_nan import ignoring

from .workloads import Workload

Apply = Callable[[Tensor], Tensor]


def _other(x: Tensor) -> Tensor:
    return torch.randn(x.shape)


def _places(x: Tensor) -> Tensor:
    return torch.randint(x.shape[1], x.shape)


def _near_one(x: Tensor) -> Tensor:
    """Matrices whose lower triangles are those of positive definite matrices."""
    return x / (4 * math.sqrt(x.shape[-1])) + torch.eye(x.shape[-1])


def _layer() -> nn.Module:
    return nn.TransformerEncoderLayer(64, 4, 256, batch_first=True)


def _attention(x: Tensor, is_causal: bool) -> Tensor:
    return F.scaled_dot_product_attention(x, x, x, is_causal=is_causal)


class _Sine(torch.autograd.Function):
    """A user's Function, without a record."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad * x.cos()


def _sines(x: Tensor) -> Tensor:
    for _ in range(20):
        x = _Sine.apply(x)
    return x


def _written(x: Tensor) -> Tensor:
    result = torch.zeros(x.shape)
    for number, row in enumerate(x):
        result[number] = row.sin()
    return result


_OF_ELEMENTS: dict[str, Apply] = {
    "exp": torch.exp, "sqrt": lambda x: x.abs().sqrt(), "division": lambda x: x / _other(x),
    "clamp": lambda x: x.clamp(-1, 1), "where": lambda x: torch.where(x > 0, x.exp(), x),
    "prelu": lambda x: F.prelu(x, torch.tensor([0.2], requires_grad=True)),
    "huber_loss": lambda x: F.huber_loss(x, _other(x), reduction="none"),
    "mse_loss": lambda x: F.mse_loss(x, _other(x), reduction="none"), "20 autograd.Functions of a user": _sines,
}  # fmt: skip
_OF_ROWS: dict[str, Apply] = {
    **{f: methodcaller(f, 1) for f in "amax cumprod cumsum logcumsumexp logsumexp prod softmax std sum".split()},
    "log_softmax": lambda x: x.log_softmax(1), "64 writes into slices": _written,
    "weight_norm": lambda x: torch._weight_norm(x, torch.ones(len(x), 1), 0),
    "sort": lambda x: x.sort(1)[0], "quantile": lambda x: x.quantile(0.3, 1), "renorm": lambda x: x.renorm(2, 0, 1.0),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[1:]), "rms_norm": lambda x: F.rms_norm(x, x.shape[1:]),
    "cosine_similarity": lambda x: F.cosine_similarity(x, _other(x)), "glu": F.glu,
    "cross_entropy": lambda x: F.cross_entropy(x, _places(x)[:, 0], reduction="none"),
    "gather": lambda x: x.gather(1, _places(x)), "indexing": lambda x: x[torch.randint(64, (64,))],
    "scatter_add": lambda x: torch.zeros(x.shape).scatter_add(1, _places(x), x),
    "scatter_reduce": lambda x: torch.zeros(x.shape).scatter_reduce(1, _places(x), x, "amax"),
    "rfft": lambda x: torch.fft.rfft(x).abs(), "embedding": lambda x: F.embedding(torch.randint(64, (256,)), x),
}  # fmt: skip
_OF_MATRICES: dict[str, Apply] = {
    "bmm": lambda x: x @ _other(x), "det": lambda x: linalg.det(_near_one(x)), "lu": lambda x: linalg.lu(x)[2],
    "solve_triangular": lambda x: linalg.solve_triangular(_near_one(x).tril(), _other(x), upper=False),
    "cholesky_solve": lambda x: torch.cholesky_solve(_other(x), _near_one(x).tril()),
    "solve": lambda x: linalg.solve_ex(_near_one(x), _other(x))[0], "inv": lambda x: linalg.inv_ex(_near_one(x))[0],
    "cholesky": lambda x: linalg.cholesky_ex(_near_one(x))[0], "qr": lambda x: linalg.qr(x)[1],
    "cholesky_inverse": lambda x: torch.cholesky_inverse(_near_one(x).tril()),
    "householder_product": lambda x: linalg.householder_product(x / x.shape[-1], torch.ones(x.shape[:-1])),
    "ormqr": lambda x: torch.ormqr(_other(x) / x.shape[-1], torch.ones(x.shape[:-1]), x),
    "matrix_exp": lambda x: linalg.matrix_exp(x / x.shape[-1]),
}  # fmt: skip
_OF_POINTS: dict[str, Apply] = {"cdist": lambda x: torch.cdist(x, _other(x)), "pdist": F.pdist}
_OF_IMAGES: dict[str, Apply] = {
    "conv2d": lambda x: nn.Conv2d(8, 8, 3)(x), "conv_transpose2d": lambda x: nn.ConvTranspose2d(8, 8, 3)(x),
    "batch_norm, frozen": lambda x: nn.BatchNorm2d(8).eval()(x), "group_norm": lambda x: nn.GroupNorm(2, 8)(x),
    "instance_norm": F.instance_norm, "max_pool2d": lambda x: F.max_pool2d(x, 2), "unfold": lambda x: F.unfold(x, 3),
    "interpolate": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "grid_sample": lambda x: F.grid_sample(x, torch.rand(8, *x.shape[2:], 2), align_corners=False),
}  # fmt: skip
_OF_TOKENS: dict[str, Apply] = {
    "linear": lambda x: nn.Linear(64, 64)(x), "bilinear": lambda x: nn.Bilinear(64, 64, 8)(x, x),
    "scaled_dot_product_attention": lambda x: _attention(x.unflatten(0, (2, 4)), False),
    "causal attention": lambda x: _attention(x.unflatten(0, (2, 4)), True),
    "MultiheadAttention": lambda x: nn.MultiheadAttention(64, 4, batch_first=True)(x, x, x)[0],
    "TransformerEncoderLayer": lambda x: _layer()(x),
    "6 transformer layers": lambda x: nn.Sequential(*[_layer() for _ in range(6)])(x),
    "LSTM": lambda x: nn.LSTM(64, 64, batch_first=True)(x)[0],
    "GRU": lambda x: nn.GRU(64, 64, batch_first=True)(x)[0],
    "RNN": lambda x: nn.RNN(64, 64, batch_first=True)(x)[0],
}  # fmt: skip
_GROUPS: list[tuple[dict[str, Apply], Callable[[int], tuple[int, ...]], tuple[int, int, int]]] = [
    (_OF_ELEMENTS, lambda n: (n,), (10_000, 100_000, 1_000_000)),
    (_OF_ROWS, lambda n: (64, n), (32, 512, 8192)),
    (_OF_MATRICES, lambda n: (64, n, n), (4, 16, 64)),
    (_OF_POINTS, lambda n: (n, 8), (32, 128, 512)),
    (_OF_IMAGES, lambda n: (8, 8, n, n), (8, 16, 64)),
    (_OF_TOKENS, lambda n: (8, n, 64), (8, 32, 128)),
]


def _gradient(apply: Apply, shape: tuple[int, ...], contaminated: bool) -> dict[str, Any]:
    """The gradient of a function. If contaminated, one number is NaN, and the loss leaves out what became NaN."""
    torch.manual_seed(0)
    x = torch.randn(shape)
    if contaminated:  # in the middle of the first row, or at the end of the first matrix
        x.view(-1)[math.prod(shape[-2:]) - 1 if len(shape) > 2 else shape[-1] // 2] = torch.nan
    x.requires_grad_()

    def forward() -> Tensor:
        torch.manual_seed(0)
        x.grad = None
        result = apply(x)
        return torch.where(result.isfinite(), result, 0).sum()

    return {"plain": (forward, Tensor.backward), "ignoring": (forward, ignoring.backward)}


def _hessian(size: int, contaminated: bool) -> dict[str, Any]:
    """The second derivatives of a sum, row by row. If contaminated, the loss leaves out one number that is NaN."""
    x = torch.linspace(0.1, 1, size)
    if contaminated:
        x[-1] = torch.nan
    x.requires_grad_()

    def forward() -> Tensor:
        result = x.exp() * x.sin()
        return torch.where(result.isfinite(), result, 0).sum()

    def rows(grad: Callable[..., Any]) -> Callable[[Tensor], None]:
        def run(loss: Tensor) -> None:
            (slopes,) = grad(loss, [x], create_graph=True)
            for slope in slopes:
                grad(slope, [x], retain_graph=True)

        return run

    return {"plain": (forward, rows(torch.autograd.grad)), "ignoring": (forward, rows(ignoring.grad))}


FUNCTIONS = {
    name: [
        Workload(name, partial(_gradient, apply, shape(n)), memory=False, entries=math.prod(shape(n))) for n in sizes
    ]
    for functions, shape, sizes in _GROUPS
    for name, apply in functions.items()
} | {"Hessian, row by row": [Workload("Hessian", partial(_hessian, n), memory=False, entries=n) for n in (4, 16, 64)]}
"""Each function at three sizes, the smallest first."""
