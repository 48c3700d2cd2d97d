"""What the property tests draw from: tensors by their bits, so that every number of a dtype can come up."""

import math
import struct

import torch
from hypothesis import settings
from hypothesis import strategies as st

from helpers.compare import _INTEGER_VIEW as INTEGER

# The same examples in every run: a build that fails once fails again.
properties = settings(deadline=None, derandomize=True, database=None, max_examples=150)

FLOATS = tuple(INTEGER)
floats = st.sampled_from(FLOATS)


def from_bits(dtype: torch.dtype, *bits: int) -> torch.Tensor:
    return torch.tensor(bits, dtype=INTEGER[dtype]).view(dtype)


def to_bits(tensor: torch.Tensor) -> list[int]:
    return tensor.contiguous().view(INTEGER[tensor.dtype]).tolist()


def bits(dtype: torch.dtype, finite: bool = False) -> st.SearchStrategy[int]:
    limits = torch.iinfo(INTEGER[dtype])
    anything = st.integers(limits.min, limits.max)
    # The numbers that go wrong: both zeros, the least, the largest, both infinities, NaN.
    largest = to_bits(torch.tensor([torch.finfo(dtype).max], dtype=dtype))[0]
    special = [0, 1, 2, largest, largest - 1, largest + 1, largest + 2]
    both = anything | st.sampled_from(special + [b + limits.min for b in special])
    return both.filter(lambda b: math.isfinite(from_bits(dtype, b).item())) if finite else both


def rank(value: float, dtype: torch.dtype) -> int:
    """A number's place among all numbers of its dtype, by Python's own packing and unbounded integers."""
    code = {torch.float16: "e", torch.bfloat16: "f", torch.float32: "f", torch.float64: "d"}[dtype]
    raw = struct.pack(">" + code, value)
    raw = raw[:2] if dtype is torch.bfloat16 else raw
    word = int.from_bytes(raw, "big")
    sign = 1 << (8 * len(raw) - 1)
    return -(word - sign) if word & sign else word
