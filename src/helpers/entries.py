"""Converts what a page observes to one form: values, a mask, and a word for each element.

A page observes a gradient as a `Tensor`, a `MaskedTensor`, a number, `None`, or the exception that was raised instead.
`outcome` turns each of them into an object that can be compared, printed and stored.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.masked import MaskedTensor


class _Masked:
    """The element that `torch.masked` prints as `--`. Use the instance, `MASKED`."""

    def __repr__(self) -> str:
        return "MASKED"


MASKED = _Masked()
"""A masked element, which `torch.masked` prints as `--`. Use it in the expected result of a claim."""


class Kind(enum.Enum):
    """The kind of an element. The value is the word that tables and machine-readable claims use."""

    FINITE = "finite"
    ZERO = "zero"
    NAN = "NaN"
    INF = "inf"
    MASKED = "masked"


# NumPy has no bfloat16. Every bfloat16 value is a float32 value.
_SHORTEST = {
    torch.float16: np.float16,
    torch.bfloat16: np.float32,
    torch.float32: np.float32,
    torch.float64: np.float64,
}


@dataclass(frozen=True, eq=False)
class Entries:
    """The elements of a tensor, with a mask that says which of them count.

    `data` is a detached, contiguous CPU tensor with any real dtype and any shape, also 0-dim or empty. `mask` is a bool
    tensor of the same shape. True means that the element counts, as in `torch.masked`.
    """

    data: torch.Tensor
    mask: torch.Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.data.shape)

    def __len__(self) -> int:
        return self.data.numel()

    def kinds(self) -> list[Kind]:
        """The `Kind` of every element, in row-major order."""
        return [_kind(value, used) for value, used in self._flat()]

    def texts(self, digits: int | None = 5) -> list[str]:
        """Every element as text: `NaN`, `inf`, `--`, or a number with `digits` significant digits.

        With `digits=None`, a number is the shortest text that identifies the value in its dtype.
        """
        return [_text(value, used, self.data.dtype, digits) for value, used in self._flat()]

    def labels(self) -> list[str]:
        """The index of every element as text: `[0]`, `[1, 2]`. For a 0-dim tensor, the text is empty."""
        if not self.shape:
            return [""]
        return [str(list(map(int, index))) for index in np.ndindex(self.shape)]

    def json(self) -> dict[str, Any]:
        """The content in a form for JSON: shape, dtype, and the shortest text of every element."""
        return {
            "dtype": str(self.data.dtype).removeprefix("torch."),
            "shape": list(self.shape),
            "entries": self.texts(digits=None),
        }

    def _flat(self) -> Iterator[tuple[float, bool]]:
        return zip(self.data.flatten().tolist(), self.mask.flatten().tolist(), strict=True)


@dataclass(frozen=True)
class Absent:
    """The outcome if there is no tensor, such as a `.grad` that is `None`."""

    def json(self) -> dict[str, Any]:
        return {"absent": True}


@dataclass(frozen=True)
class Raised:
    """The outcome if an exception was raised: the name of its type, and its message."""

    type: str
    message: str = ""

    def json(self) -> dict[str, Any]:
        return {"raised": self.type, "message": self.message}


Outcome = Entries | Absent | Raised


def outcome(value: Any) -> Outcome:
    """Convert an observed or expected value to an outcome: `Entries`, `Absent` or `Raised`.

    Args:
        value: a tensor or `MaskedTensor` of any shape with a real dtype; a NumPy array or number; a Python number;
            a (nested) sequence of numbers and `MASKED`; `None`; an exception or an exception type. Plain numbers become
            bool, int64 or float64: the first of these dtypes that can hold all of them.

    Raises:
        TypeError: if `value` is a complex or quantized tensor, or anything else that has no elements to compare.
        ValueError: if the rows of a nested sequence differ in length.

    >>> outcome([1.0, MASKED, float("nan")]).texts()
    ['1', '--', 'NaN']
    >>> outcome(torch.tensor(3.0)).shape
    ()
    >>> outcome(None)
    Absent()
    """
    if isinstance(value, (Entries, Absent, Raised)):
        return value
    if value is None:
        return Absent()
    if isinstance(value, BaseException):
        return Raised(type(value).__name__, str(value))
    if isinstance(value, type) and issubclass(value, BaseException):
        return Raised(value.__name__)
    if isinstance(value, MaskedTensor):
        return _entries(value.get_data(), value.get_mask())
    if isinstance(value, torch.Tensor):
        return _entries(value, None)
    if isinstance(value, (np.ndarray, np.generic)):
        # Copied in the machine's byte order, because torch accepts no other, and warns about read-only arrays.
        return _entries(torch.from_numpy(np.array(value, dtype=value.dtype.newbyteorder("="))), None)
    if isinstance(value, (bool, int, float, _Masked, list, tuple)):
        return _from_numbers(value)
    raise TypeError(
        f"cannot compare a {type(value).__name__}: give a tensor, numbers, None, or an exception. "
        "For a complex result, claim .real and .imag separately."
    )


def _entries(data: torch.Tensor, mask: torch.Tensor | None) -> Entries:
    if data.is_complex() or data.is_quantized or data.is_nested:
        what = "complex" if data.is_complex() else "quantized" if data.is_quantized else "nested"
        raise TypeError(
            f"cannot compare {what} tensors element by element: claim .real and .imag, .dequantize(), or each component"
        )
    if data.is_floating_point() and data.dtype not in _SHORTEST:
        raise TypeError(
            f"cannot compare {data.dtype} element by element: claim .float(), which represents all its values"
        )
    data = data.detach()
    if data.layout is not torch.strided:
        data = data.to_dense()
    # A copy, because a page may change its tensor in place later, as a second `backward` changes `.grad`.
    data = data.cpu().clone(memory_format=torch.contiguous_format)
    if mask is None:
        return Entries(data, torch.ones_like(data, dtype=torch.bool))
    return Entries(data, mask.detach().to_dense().cpu().clone(memory_format=torch.contiguous_format))


def _from_numbers(value: Any) -> Entries:
    flat: list[Any] = []
    shape = _shape(value, flat)
    used = [not isinstance(number, _Masked) for number in flat]
    numbers = [number if keep else 0 for number, keep in zip(flat, used, strict=True)]
    shown = [number for number, keep in zip(flat, used, strict=True) if keep]
    if shown and all(isinstance(number, bool) for number in shown):
        dtype = torch.bool
    elif shown and all(isinstance(number, int) and -(2**63) <= number < 2**63 for number in shown):
        dtype = torch.int64
    else:
        dtype = torch.float64
    # On the CPU, as all elements of a claim, although a page may have chosen another default device.
    data = torch.tensor(numbers, dtype=dtype, device="cpu").reshape(shape)
    return Entries(data, torch.tensor(used, dtype=torch.bool, device="cpu").reshape(shape))


def _shape(value: Any, flat: list[Any]) -> tuple[int, ...]:
    """Append the numbers of a nested sequence to `flat` and return its shape."""
    if not isinstance(value, (list, tuple)):
        if isinstance(value, np.generic) or (isinstance(value, torch.Tensor) and not value.dim()):
            value = value.item()
        if not isinstance(value, (bool, int, float, _Masked)):
            raise TypeError(f"expected a number or MASKED inside the sequence, found {type(value).__name__}")
        flat.append(value)
        return ()
    shapes = [_shape(row, flat) for row in value]
    if len(set(shapes)) > 1:
        raise ValueError(f"rows of different shapes: {sorted(set(shapes))}; give a rectangular nested list")
    return (len(value), *(shapes[0] if shapes else ()))


def _kind(value: float, used: bool) -> Kind:
    if not used:
        return Kind.MASKED
    if math.isnan(value):
        return Kind.NAN
    if math.isinf(value):
        return Kind.INF
    if isinstance(value, bool):
        return Kind.FINITE
    return Kind.ZERO if value == 0 else Kind.FINITE


def _text(value: float, used: bool, dtype: torch.dtype, digits: int | None) -> str:
    kind = _kind(value, used)
    if kind is Kind.MASKED:
        return "--"
    if kind is Kind.NAN:
        return "NaN"
    if kind is Kind.INF:
        return "inf" if value > 0 else "-inf"
    if not dtype.is_floating_point:
        return str(value)
    if kind is Kind.ZERO:
        return "-0" if math.copysign(1.0, value) < 0 else "0"
    shortest = str(_SHORTEST.get(dtype, np.float64)(value)).removesuffix(".0")
    if digits is None:
        return shortest
    text = f"{value:.{digits}g}"
    # 28.999999999999996 must not look like 29.
    looks_whole = text.lstrip("-").isdigit() and not value.is_integer()
    return shortest if looks_whole else text


def nested(texts: Sequence[str], shape: Sequence[int], limit: int = 24) -> str:
    """Elements as one bracketed line, `[1, NaN]` or `[[1, 2], [3, 4]]`. Above `limit` elements, the middle is cut.

    >>> nested(["1", "NaN"], (2,))
    '[1, NaN]'
    """
    if len(texts) > limit:
        head, tail = texts[: limit - 2], texts[-2:]
        return f"[{', '.join(head)}, … {len(texts) - limit} more …, {', '.join(tail)}] of shape {list(shape)}"
    if not shape:
        return texts[0]
    if len(shape) == 1:
        return f"[{', '.join(texts)}]"
    step = len(texts) // shape[0] if shape[0] else 0
    return "[" + ", ".join(nested(texts[i * step : (i + 1) * step], shape[1:], limit) for i in range(shape[0])) + "]"


def describe(result: Outcome, digits: int | None = 5) -> str:
    """An outcome as one line of text.

    >>> describe(outcome([0.0, float("nan")]))
    '[0, NaN]'
    >>> describe(outcome(TypeError("no")))
    'raises TypeError'
    """
    if isinstance(result, Absent):
        return "None"
    if isinstance(result, Raised):
        return f"raises {result.type}"
    return nested(result.texts(digits), result.shape)
