"""The numerics of a function: its names, and where its value or its slope is infinite, or is no number.

`explain` reads them. They have nothing to do with masks, which the record of a function (`record.Function`) is about.
Each file of `families` has both, for its functions. What can be tried is tried: a test compares each name with those
that PyTorch has, and each fact with what PyTorch computes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

import torch

from .graph import function_of


@dataclass(frozen=True, eq=False)
class Numerics:
    """What is known of the numbers that a function takes and gives.

    Attributes:
        name: the name by which `explain` calls the function, whatever name the program called it by. If left out, it
            is the first of the names.
        domain: the least and the largest argument. The value is NaN for arguments outside.
        pole: whether the value is infinite or undefined at these operands, which are numbers.
        no_direction: whether the value or the slope depends on the direction in which an operand leaves 0, or in which
            equal elements part, as that of norm.
        grows: whether the value is infinite only because it is too large, as that of exp.
        steep_at: the arguments at which the slope may be infinite or undefined.
        inverse: gives the argument that led to a value. For functions whose node saves the value alone.
        exact: computes the function on numbers of any precision. mpmath has other functions by their names.
        elementwise: whether each element of the gradient depends on the same element of the cotangent. Set it only for
            functions that PyTorch does not call pointwise.
        products: whether the values are sums of products. A derivative then multiplies by the other factor.
        divides: whether the derivative divides what arrives, where others multiply it by a slope.
        moves: whether each element of the result is an element of the operand.
        keeps_zero: whether the value is 0 if the first operand is.
        kinks: gives the arguments at which the slope jumps, from a node. The slope there is a convention.
        uses_kinks: whether the convention is the slope 1, and not 0.
        of_equals: what a function that compares elements does with a cotangent if several elements are equal: "one"
            gets it, or they share it ("all"). By the number at the end of the node's name; "" is for every number.
        ignores_infinity: whether an operand of -inf is a way to leave an element out.
        needs_one: whether the value is infinite only if every element was left out, or the one that counts.
        makes: "numbers" if the function computes; "nothing" if the result has the memory of an argument, or no floats;
            "no graph" if the result is an argument without its graph, or a mask of it; "data" if the function brings in
            numbers from elsewhere; "memory" if it leaves the memory as it is.
        draws: "data" if the result is random numbers without a gradient, "numbers" if these have a gradient; "places"
            if random numbers decide what becomes of the operand, in each dtype the same.
        replaces: whether the function computes nothing, in place, from what it overwrites.
        compares: whether the function compares a prediction with a target.
        is_open: whether equal values leave open which vectors the function gives.
        updates: whether optimizers call the function in place.
        written: how to write the call with signs: "{} + {}". Without it, the call is written `name(a, b)`.
        written_scaled: the same with a last operand, `alpha` or `value`, by which the function multiplies.
        has_order: whether the second parameter is the order of a norm.
        like: the function that has the same remedies.
        section: the page of the book about a NaN of this function that the loss ignores.
        points: the section about the points at which its value or its slope is no number.
    """

    name: str = ""
    domain: tuple[float, float] = (-math.inf, math.inf)
    pole: Callable[..., bool] | None = None
    no_direction: bool = False
    grows: bool = False
    steep_at: tuple[float, ...] = (0.0,)
    inverse: Callable[[float], float] | None = None
    exact: Callable[..., Any] | None = None
    elementwise: bool = False
    products: bool = False
    divides: bool = False
    moves: bool = False
    keeps_zero: bool = False
    kinks: Callable[[Any], tuple[float | None, ...]] | None = None
    uses_kinks: bool = False
    of_equals: Mapping[str, Literal["one", "all"]] = field(default_factory=dict)
    ignores_infinity: bool = False
    needs_one: bool = False
    makes: Literal["numbers", "nothing", "no graph", "data", "memory"] = "numbers"
    draws: Literal["", "data", "numbers", "places"] = ""
    replaces: bool = False
    compares: bool = False
    is_open: bool = False
    updates: bool = False
    written: str = ""
    written_scaled: str = ""
    has_order: bool = False
    like: str = ""
    section: str = ""
    points: str = ""

    @property
    def is_limited(self) -> bool:
        """Whether the domain ends."""
        return self.domain != (-math.inf, math.inf)

    def divisor(self, operands: Sequence[float | None]) -> int | None:
        """The position of the operand that must not be 0; None if there is none.

        Operands are numbers, or None for a tensor, which may hold any number.

        >>> numerics_of("div").divisor([None, None]), numerics_of("div").divisor([None, 2.0])
        (1, None)
        """
        numbers = [-1.0 if each is None else each for each in operands]
        for at, each in enumerate(operands):
            if each is None and self.pole is not None and self.pole(*numbers[:at], 0.0, *numbers[at + 1 :]):
                return at
        return None


NUMERICS: dict[str, Numerics] = {}
"""The numerics of each function, by all of its names."""


def numerics(names: str, **facts: Any) -> None:
    """Note the numerics of one or more functions; `facts` are the fields of `Numerics`.

    Args:
        names: the functions, separated by spaces. A function has the name of its operator, `torch.ops.aten.sqrt`, or of
            the Python function, `torch.sqrt`. More names of the same function follow after "=", as in "acos=arccos".

    Raises:
        ValueError: if one of the names has numerics already.
    """
    for synonyms in names.split():
        name, *others = synonyms.split("=")
        record = Numerics(**{"name": name, **facts})
        for each in (name, *others):
            if each in NUMERICS:
                raise ValueError(f"{each} has numerics already: {NUMERICS[each]}")
            NUMERICS[each] = record


def numerics_of(name: str) -> Numerics:
    """The numerics of a function, by the name of its operator or of its Python function."""
    return NUMERICS.get(name) or Numerics(name)


def numerics_of_node(node: Any) -> Numerics:
    """The numerics of the function whose derivative a node computes."""
    return _of_function(function_of(node.name()))


def is_elementwise(node: Any) -> bool:
    """True if each element of a gradient depends on one element of the cotangent, as far as shapes allow."""
    known = numerics_of_node(node)
    return known.elementwise or is_pointwise(known.name)


@cache
def _of_function(function: str) -> Numerics:
    """The numerics of a function by its name in nodes: "MaskedFill" has those of "masked_fill"."""
    letters = function.lower()
    found = next((record for name, record in NUMERICS.items() if name.replace("_", "") == letters), None)
    return found or Numerics(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", function).lower())


@cache
def is_pointwise(operator: str) -> bool:
    """True if PyTorch calls an overload of the operator pointwise."""
    packet = getattr(torch.ops.aten, operator, None)
    overloads = [] if packet is None else packet.overloads()
    return any(torch.Tag.pointwise in getattr(packet, overload).tags for overload in overloads)
