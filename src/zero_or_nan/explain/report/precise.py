"""Runs operators on numbers of 1,200 bits, because float64 rounds 1 - sigmoid(40) to 0, as float32 does.

The numbers with many bits are kept beside the memory of a float64 tensor, which holds the same numbers rounded, so
views need no code here. mpmath computes functions of one number, and some other operators are written with these
functions and with sums. Derivatives consist of operators, so gradients are as exact as values. PyTorch's own
decompositions cover more operators, but the first one takes seconds, because it imports the compiler.

A difference counts as 0 if it is so small that rounding alone may have caused it, as in sqrt(2) ** 2 - 2.

This library does not require mpmath, but PyTorch does, through sympy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from typing import Any

import torch
from torch import Tensor

from ...functions.numerics import NUMERICS, numerics_of
from ...ignoring.inside import Mode, tree_map_only
from ..program.tensors import each_in, tensors_in

BITS = 1200
"""The precision: 1 - sigmoid(800) begins in bit 1,154."""

_NOISE = 2.0 ** -(BITS - 200)

MOST_ELEMENTS, MOST_NUMBERS = 1_000, 20_000
"""The largest number of elements of a tensor, and of all numbers that a run may compute."""

_OF_MPMATH = frozenset(
    """
    acos acosh asin asinh atan atan2 atanh cos cosh digamma erf erfc exp expm1 log log10 log1p sin sinh sqrt tan tanh
    """.split()
)
"""Operators with the same name as mpmath's function."""

_MOVES = frozenset(
    """
    _to_copy convert_element_type copy flip index_add index_put index_select rev scatter_add select_backward
    slice_backward where
    """.split()
)
"""Operators that only move numbers, in addition to those whose numerics say so."""

_CONSTANTS = frozenset("empty_like fill full_like new_full new_zeros ones_like sgn sign zero zeros_like".split())
"""Operators whose numbers need no more bits than they have."""


class TooHardError(Exception):
    """The run has too many numbers, or an operator that this file does not support."""


class Precise(Mode):
    """While entered, operators on tensors in float64 compute with many bits.

    Raises:
        ImportError: if mpmath is not installed.
        TooHardError: if an operator is not supported, or if there are too many numbers.
    """

    def __init__(self) -> None:
        super().__init__()
        import mpmath  # type: ignore[import-untyped]

        self._mp = mpmath
        self._beside: dict[int, dict[int, Any]] = {}
        self._kept: list[Tensor] = []  # another tensor could take its memory
        self._count = 0
        self._by_element: dict[str, Callable[..., Any]] = {
            **{name: getattr(mpmath, name) for name in _OF_MPMATH},
            **{name: known.exact for name, known in NUMERICS.items() if known.exact is not None},
            "add": lambda a, b, alpha=1: self._sum([a, alpha * b]),
            "exp2": lambda a: 2**a,
            "log2": lambda a: mpmath.log(a, 2),
            "rsub": lambda a, b, alpha=1: self._sum([b, -alpha * a]),
            "rsqrt": lambda a: 1 / mpmath.sqrt(a),
            "sigmoid": self._sigmoid,
            "sigmoid_backward": lambda g, y: g * y * self._sum([1, -y]),
            "softplus": lambda a, beta=1, most=20: mpmath.log1p(mpmath.exp(beta * a)) / beta if beta * a <= most else a,
            "softplus_backward": lambda g, a, beta, most: g * self._sigmoid(beta * a) if beta * a <= most else g,
            "log_sigmoid_backward": lambda g, a, _: g * self._sigmoid(-a),
            "sub": lambda a, b, alpha=1: self._sum([a, -alpha * b]),
            "tanh_backward": lambda g, y: g * self._sum([1, -y * y]),
            "threshold_backward": lambda g, a, least: g if a > least else g * 0,
        }
        self._by_row: dict[str, Callable[..., Any]] = {
            "amax": lambda *row: max(row),
            "amin": lambda *row: min(row),
            "mean": lambda *row: self._sum(row) / len(row),
            "prod": lambda *row: mpmath.fprod(row),
            "sum": lambda *row: self._sum(row),
        }

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.partition("::")[2].rstrip("_")
        if func.is_view or name in _CONSTANTS or not any(map(torch.is_floating_point, tensors_in((args, kwargs)))):
            result = func(*args, **kwargs)
            for tensor in tensors_in(result) if func._schema.is_mutable else ():
                self._keep(tensor, repeat(None))
            return result
        if max(tensor.numel() for tensor in tensors_in((args, kwargs))) > MOST_ELEMENTS:
            raise TooHardError(f"a tensor has more than {MOST_ELEMENTS} elements")
        is_complex = any(tensor.is_complex() for tensor in tensors_in((args, kwargs)))
        if is_complex or any(each_in((args, kwargs), complex)):
            raise TooHardError("complex numbers are not supported")
        with self._mp.workprec(BITS):
            if name in self._by_element and not kwargs.keys() - {"alpha"}:
                operands = self._aligned([*args, *kwargs.values()])
                return self._filled(func(*args, **kwargs), self._by_element[name], operands)
            if name in self._by_row and not kwargs:
                return self._filled(func(*args), self._by_row[name], self._rows(*args))
            if (name in _MOVES or numerics_of(name).moves) and not each_in(args, float):
                return self._moved(func, args, kwargs)
        with self:
            result = _PARTS[name](*args, **kwargs) if name in _PARTS else func.decompose(*args, **kwargs)
            if func._schema.is_mutable and result is not NotImplemented:
                result = args[0].copy_(result)
        if result is NotImplemented and any(map(torch.is_floating_point, tensors_in(result := func(*args, **kwargs)))):
            raise TooHardError(f"{func} is not supported")
        return result

    def _sigmoid(self, a: Any) -> Any:
        return 1 / (1 + self._mp.exp(-a))

    def _sum(self, row: Sequence[Any]) -> Any:
        total = self._mp.fsum(row)
        return total if abs(total) > _NOISE * max(map(abs, row), default=0) else self._mp.mpf(0)

    def _aligned(self, operands: Sequence[Any]) -> Iterable[Sequence[Any]]:
        """The numbers of operands, element by element."""
        shape = torch.broadcast_shapes(*(each.shape for each in operands if isinstance(each, Tensor)))
        rows = [
            self._numbers(each.expand(shape)) if isinstance(each, Tensor) else repeat(self._mp.mpf(each))
            for each in operands
        ]
        return zip(*rows, strict=False)

    def _rows(self, tensor: Tensor, dim: Any = None, keepdim: bool = False) -> list[list[Any]]:
        """The numbers that are reduced to each element of a result."""
        dims = range(tensor.dim()) if dim is None or dim == [] else [dim] if isinstance(dim, int) else dim
        gone = sorted(each % tensor.dim() for each in dims) if tensor.dim() else []
        kept = [each for each in range(tensor.dim()) if each not in gone]
        moved = tensor.permute(*kept, *gone).flatten(len(kept)) if gone else tensor.unsqueeze(-1)
        numbers, length = self._numbers(moved), moved.shape[-1]
        return [numbers[at : at + length] for at in range(0, len(numbers), length)] if length else []

    def _moved(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The result of an operator that moves numbers. To find out where to, it moves their positions."""
        every = [self._mp.mpf(0)]

        def positions(tensor: Tensor) -> Tensor:
            if not tensor.is_floating_point():
                return tensor
            numbers = self._numbers(tensor)
            begin = len(every)
            every.extend(numbers)
            found = [0 if number == 0 else at for at, number in enumerate(numbers, begin)]
            return torch.tensor(found, device=tensor.device).reshape(tensor.shape)

        def counted(tensor: Tensor) -> Tensor:
            return positions(tensor).sign() if tensor.is_floating_point() else tensor

        if any(bool((each > 1).any()) for each in tensors_in(func(*tree_map_only(Tensor, counted, args), **kwargs))):
            raise TooHardError(f"{func} adds numbers")
        where = func(*tree_map_only(Tensor, positions, args), **kwargs)
        result = func(*args, **kwargs)
        for tensor, at in zip(tensors_in(result), tensors_in(where), strict=True):
            self._keep(tensor, [every[int(each)] for each in at.flatten().tolist()])
        return result

    def _filled(self, result: Tensor, compute: Callable[..., Any], rows: Iterable[Sequence[Any]]) -> Tensor:
        """A result, with its numbers computed once more. Where that gives none, it stays as it is."""
        self._keep(result, [self._of(compute, row) for row in rows])
        return result

    def _of(self, compute: Callable[..., Any], operands: Sequence[Any]) -> Any:
        try:
            found = compute(*operands) if all(map(self._mp.isfinite, operands)) else None
        except (ArithmeticError, ValueError):  # a pole
            return None
        return found if isinstance(found, self._mp.mpf) and self._mp.isfinite(found) else None

    def _numbers(self, tensor: Tensor) -> list[Any]:
        beside = self._beside.get(tensor.untyped_storage().data_ptr(), {})
        values = tensor.flatten().tolist()
        return [beside.get(at) or self._mp.mpf(value) for at, value in zip(_offsets(tensor), values, strict=True)]

    def _keep(self, tensor: Tensor, numbers: Iterable[Any]) -> None:
        """Keep numbers beside a tensor, and the rounded ones in it. None is for a number that needs no more bits."""
        self._count += tensor.numel()
        if self._count > MOST_NUMBERS:
            raise TooHardError(f"the run computes more than {MOST_NUMBERS} numbers")
        if not tensor.numel():
            return
        self._kept.append(tensor)
        beside = self._beside.setdefault(tensor.untyped_storage().data_ptr(), {})
        values = tensor.flatten().tolist()
        for at, (offset, number) in enumerate(zip(_offsets(tensor), numbers, strict=False)):
            beside[offset] = number
            if number is not None:
                values[at] = float(number)
        tensor.copy_(torch.tensor(values, dtype=torch.float64).reshape(tensor.shape))


def _offsets(tensor: Tensor) -> list[int]:
    """Where each element is in memory."""
    size = tensor.untyped_storage().nbytes() // tensor.element_size()
    places = torch.arange(size).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    return places.flatten().tolist()


def _like(x: Tensor, number: Any) -> Tensor:
    return torch.as_tensor(number, dtype=x.dtype, device=x.device)


def _clamp(x: Tensor, least: Any = None, most: Any = None) -> Tensor:
    x = x if least is None else torch.maximum(x, _like(x, least))
    return x if most is None else torch.minimum(x, _like(x, most))


def _variance(x: Tensor, dim: Any = None, correction: float = 1, keepdim: bool = False) -> Tensor:
    dims = list(range(x.dim())) if dim is None else dim
    squares = (x - x.mean(dims, keepdim=True)).square()
    total = squares.sum(dims, keepdim=keepdim)
    return total / max(x.numel() / max(total.numel(), 1) - correction, 0)


def _length(x: Tensor, ord: float = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
    return NotImplemented if ord != 2 else x.square().sum(list(range(x.dim())) if dim is None else dim, keepdim).sqrt()


_PARTS: dict[str, Callable[..., Any]] = {
    "_log_softmax": lambda x, dim, _: x - x.logsumexp(dim, keepdim=True),
    "_log_softmax_backward_data": lambda g, y, dim, _: g - y.exp() * g.sum(dim, keepdim=True),
    "_softmax": lambda x, dim, _: (x - x.logsumexp(dim, keepdim=True)).exp(),
    "_softmax_backward_data": lambda g, y, dim, _: y * (g - (g * y).sum(dim, keepdim=True)),
    "addmm": lambda c, a, b: c + a @ b,
    "bmm": lambda a, b: (a.unsqueeze(-1) * b.unsqueeze(-3)).sum(-2),
    "clamp": _clamp,
    "clamp_max": lambda x, most: _clamp(x, most=most),
    "clamp_min": _clamp,
    "dot": lambda a, b: (a * b).sum(),
    "linalg_norm": _length,
    "linalg_vector_norm": _length,
    "log_sigmoid_forward": lambda x: (-(-x).exp().log1p(), torch.zeros_like(x)),
    "logsumexp": lambda x, dim, keepdim=False: x.exp().sum(dim, keepdim).log(),
    "masked_fill": lambda x, mask, value: torch.where(mask, _like(x, value), x),
    "mm": lambda a, b: (a.unsqueeze(-1) * b).sum(-2),
    "mv": lambda a, b: (a * b).sum(-1),
    "std": lambda *args, **kwargs: _variance(*args, **kwargs).sqrt(),
    "var": _variance,
}
"""Operators written with other operators. mpmath has room for exponentials that overflow float64."""
