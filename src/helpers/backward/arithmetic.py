"""The arithmetic inside a node of the graph: how it computes each element from the cotangent.

A rule says how a node computes the cotangent that it passes on. The figure uses a rule only if its result has the same
bits as the recorded cotangent. A node that only moves its cotangent is described in words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from zero_or_nan.functions.graph import signed

from ..entries import Entries, outcome
from .graph import FigureStep, Sent

GRAD = "grad"
"""The name of the arriving cotangent in PyTorch's formulas."""


@dataclass(frozen=True, eq=False)
class Node:
    """The input of a rule: what arrives, what was saved, and what the node passes on to input number `slot`."""

    grad: Tensor
    saved: Mapping[str, Any]
    slot: int
    passed: Tensor


@dataclass(frozen=True, eq=False)
class Arithmetic:
    """How a node computes the cotangent that it passes on to one input.

    Attributes:
        pattern: the formula for one element of the result, with a place for each operand: `{} × {}`.
        operands: the operands by their names in PyTorch's formula. The cotangent, `grad`, comes first.
        value: the result, in the shape of the input.
        terms: if the result sums several terms, all of them. Its last dimensions have the shape of the result, or
            broadcast to it. None if each element has one term.
        words: the formula, if it differs from the pattern.
        arranged: brings a tensor with the shape of the cotangent to the shape of the operand `grad`.
    """

    pattern: str
    operands: Mapping[str, Any]
    value: Tensor
    terms: Tensor | None = None
    words: str = ""
    arranged: Callable[[Tensor], Tensor] = lambda tensor: tensor

    @property
    def formula(self) -> str:
        return self.words or self.pattern.format(*self.operands)

    def births(self) -> dict[int, str]:
        """The arithmetic of the elements that become NaN although no NaN arrives for them, by index."""
        terms, place, flat = self._laid_out()
        born: dict[int, str] = {}
        for term in (terms.flatten().isnan() & ~flat[0].isnan()).nonzero().flatten().tolist():
            text = self.pattern.format(*(_number(operand[term]) for operand in flat))
            born.setdefault(int(place[term]), f"{text} = NaN")
        return born

    def ignored(self, at: int, mask: Tensor) -> str:
        """The arithmetic of the first ignored term of an element that would be NaN; empty if there is none."""
        terms, place, flat = self._laid_out()
        left_out = terms.flatten().isnan() & ~_flat(self.arranged(mask), terms.shape) & (place == at)
        for term in left_out.nonzero().flatten().tolist():
            others = (_number(operand[term]) for operand in flat[1:])
            return self.pattern.format("--", *others).removeprefix("−")  # an ignored element has no sign
        return ""

    def _laid_out(self) -> tuple[Tensor, Tensor, list[Tensor]]:
        """All terms; the index of the element that each term is added to; and each operand. The last two are flat."""
        terms = self.value if self.terms is None else self.terms
        place = torch.arange(self.value.numel()).reshape(self.value.shape).broadcast_to(terms.shape).flatten()
        return terms, place, [_flat(operand, terms.shape) for operand in self.operands.values()]


Rule = Callable[[Node], Arithmetic | None]


def arithmetic(step: FigureStep, sent: Sent) -> Arithmetic | None:
    """How the vanilla pass computed what a node sent; None if no rule gives the same bits."""
    if len(step.arrives) != 1 or step.function not in RULES:
        return None
    (arrived,) = step.arrives.values()
    grad, passed = arrived["vanilla"], sent.value["vanilla"]
    if not isinstance(grad, Entries) or not isinstance(passed, Entries):
        return None
    try:
        made = RULES[step.function](Node(grad.data, step.saved, sent.slot, passed.data))
    except (KeyError, TypeError, RuntimeError, IndexError):
        return None  # another release saves other values: then no arithmetic is shown
    return made if made is not None and _same(made.value, passed.data) else None


def moved(step: FigureStep, slot: int) -> str:
    """How a node moves its cotangent to one input, in words; empty if the node computes something."""
    each = MOVES.get(step.function, ())
    if slot >= len(each) or slot and step.saved.get("alpha", 1) != 1:
        return ""
    return each[slot].format(**{name: signed(value) for name, value in step.saved.items() if name == "index"})


def _same(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return bool((a.isnan() & b.isnan() | (a == b) & (a.signbit() == b.signbit())).all())


def _flat(operand: Any, shape: torch.Size) -> Tensor:
    return torch.as_tensor(operand).broadcast_to(shape).flatten()


def _number(value: Tensor) -> str:
    (text,) = outcome(value).texts(3)  # type: ignore[union-attr]
    return f"({text})" if text.startswith("-") else text


def _made(node: Node, pattern: str, others: Mapping[str, Any], terms: Tensor | None = None) -> Arithmetic:
    """Elementwise arithmetic of `grad` and other operands. If the forward pass broadcast the input, terms are summed.

    `terms` are the results, if the pattern does not give their bits.
    """
    operands = {GRAD: node.grad, **others}
    if terms is None:
        code = pattern.format(*(f"operands[{at}]" for at in range(len(operands))))
        code = code.translate(str.maketrans("−×÷", "-*/"))
        terms = eval(code, {"operands": [*operands.values()]})
    assert terms is not None
    if terms.shape == node.passed.shape:
        return Arithmetic(pattern, operands, terms)
    return Arithmetic(pattern, operands, terms.sum_to_size(node.passed.shape), terms)


def _formula(*by_slot: str) -> Rule:
    """The rule of elementwise functions: a formula for each input. Its names are `grad` and what the node saved."""

    def rule(node: Node) -> Arithmetic | None:
        if node.slot >= len(by_slot):
            return None
        parts = re.split(r"([a-z]+)", by_slot[node.slot])
        names = list(dict.fromkeys([GRAD, *parts[1::2]]))
        parts[1::2] = [f"{{{names.index(name)}}}" for name in parts[1::2]]
        return _made(node, "".join(parts), {name: node.saved[name] for name in names[1:]})

    return rule


def _sigmoid(node: Node) -> Arithmetic:
    result = node.saved["result"]
    terms = torch.ops.aten.sigmoid_backward(node.grad, result)
    return _made(node, "{0} × (1 − {1}) × {1}", {"result": result}, terms)


def _square(node: Node) -> Arithmetic | None:
    exponent = node.saved["exponent"]  # of 2**x it is a tensor
    return _formula("grad × (2 × self)")(node) if isinstance(exponent, (int, float)) and exponent == 2 else None


def _product(left: Tensor, right: Tensor, names: tuple[str, str]) -> Arithmetic:
    """The arithmetic of `left @ right`, whose terms have the shape [inner, rows, columns]."""
    arranged: list[Callable[[Tensor], Tensor]] = [lambda each: each.t().unsqueeze(2), lambda each: each.unsqueeze(1)]
    sides = [arrange(side) for arrange, side in zip(arranged, (left, right), strict=True)]
    at = names.index(GRAD)
    operands = {GRAD: sides[at], names[1 - at]: sides[1 - at]}  # the cotangent comes first
    return Arithmetic("{} × {}", operands, left.mm(right), sides[0] * sides[1], " @ ".join(names), arranged[at])


def _mm(node: Node) -> Arithmetic | None:
    saved, slot = node.saved, node.slot - ("mat1" in node.saved)  # the first input of `addmm` is the bias
    if saved.get("beta" if slot == -1 else "alpha", 1) != 1:
        return None
    if slot == -1:
        return _made(node, "{}", {})
    if slot == 0:
        return _product(node.grad, saved["mat2"].t(), (GRAD, "mat2.T"))
    name = "mat1" if "mat1" in saved else "self"
    return _product(saved[name].t(), node.grad, (f"{name}.T", GRAD))


RULES: dict[str, Rule] = {
    "mul": _formula("grad × other", "grad × self"),
    "div": _formula("grad ÷ other", "−grad × ((self ÷ other) ÷ other)"),
    "exp": _formula("grad × result"),
    "reciprocal": _formula("−grad × (result × result)"),
    "sqrt": _formula("grad ÷ (2 × result)"),
    "log": _formula("grad ÷ self"),
    "sigmoid": _sigmoid,
    "pow": _square,
    **dict.fromkeys(("mm", "addmm"), _mm),
}
"""The rules by the function's name: for the functions in the book's figures, and a few more."""

MOVES = {
    "add": ("grad", "grad"),
    "sub": ("grad", "−grad"),
    "neg": ("−grad",),
    "where": ("grad if condition else 0", "0 if condition else grad"),
    "masked_fill": ("0 if mask else grad",),
    "relu": ("grad if result > 0 else 0",),
    "sum": ("grad, for every element",),
    "nansum": ("grad × (not isnan(self))",),
    "index": ("grad where picked, else 0",),
    "slice": ("grad in the slice, else 0",),
    "select": ("grad at index {index}, else 0",),
    "t": ("grad, transposed",),
    "view": ("grad, in the input's shape",),
}
"""How a function moves its cotangent to each input."""
