"""The arithmetic inside a node of the graph: how it computes each element from the cotangent.

A rule says how a node computes the cotangent that it passes on. The figure uses a rule only if its result has the same
bits as the recorded cotangent. Otherwise the figure shows no arithmetic for this node.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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

    @property
    def shape(self) -> torch.Size:
        return self.passed.shape


@dataclass(frozen=True, eq=False)
class Arithmetic:
    """How a node computes the cotangent that it passes on to one input.

    Attributes:
        pattern: the formula for one element of the result, with a place for each operand: `{} × {}`.
        operands: the operands by their names in PyTorch's formula. The cotangent, `grad`, comes first.
        value: the result, in the shape of the input.
        terms: if the result sums several terms, all of them. Its last dimensions have the shape of the result, or
            broadcast to it. None if each element has one term.
        words: the formula in words, if a pattern can't express it.
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

    @property
    def entrywise(self) -> bool:
        """Whether each element of the result is computed only from the elements at the same index."""
        return self.terms is None and self.operands[GRAD].shape == self.value.shape

    def births(self) -> Iterator[tuple[int, str]]:
        """The elements that become NaN although no NaN arrives for them: the index, and the arithmetic as text."""
        terms, place, flat = self._laid_out()
        born = terms.flatten().isnan() & ~flat[0].isnan()
        done = set()
        for term in born.nonzero().flatten().tolist():
            if (at := int(place[term])) not in done:
                done.add(at)
                yield at, f"{self.pattern.format(*(_number(operand[term]) for operand in flat))} = NaN"

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


Rule = Callable[[Node], Iterable[Arithmetic]]


def arithmetic(step: FigureStep, sent: Sent) -> Arithmetic | None:
    """How the vanilla pass computed what a node sent; None if no rule gives the same bits."""
    if len(step.arrives) != 1 or step.function not in RULES:
        return None
    (arrived,) = step.arrives.values()
    grad, passed = arrived["vanilla"], sent.value["vanilla"]
    if not isinstance(grad, Entries) or not isinstance(passed, Entries):
        return None
    try:
        for made in RULES[step.function](Node(grad.data, step.saved, sent.slot, passed.data)):
            if _same(made.value, passed.data):
                return made
    except (KeyError, TypeError, RuntimeError, IndexError):
        pass  # another release saves other values: then no arithmetic is shown
    return None


def _same(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return bool((a.isnan() & b.isnan() | (a == b) & (a.signbit() == b.signbit())).all())


def _flat(operand: Any, shape: torch.Size) -> Tensor:
    return torch.as_tensor(operand).broadcast_to(shape).flatten()


def _number(value: Tensor) -> str:
    (text,) = outcome(value).texts(3)  # type: ignore[union-attr]
    return f"({text})" if text.startswith("-") else text


def _made(
    node: Node,
    pattern: str,
    others: Mapping[str, Any] | None = None,
    *,
    grad: Tensor | None = None,
    terms: Tensor | None = None,
    words: str = "",
) -> Arithmetic:
    """Elementwise arithmetic. If the forward pass broadcast the input, the terms are summed.

    Args:
        others: the operands beside `grad`.
        grad: the operand, if it is not the arriving cotangent.
        terms: the results, if the pattern does not give their bits.
    """
    operands = {GRAD: node.grad if grad is None else grad, **(others or {})}
    terms = _computed(pattern, [*operands.values()]) if terms is None else terms
    if terms.shape == node.shape:
        return Arithmetic(pattern, operands, terms, words=words)
    return Arithmetic(pattern, operands, terms.sum_to_size(node.shape), terms, words)


def _computed(pattern: str, operands: Sequence[Any]) -> Tensor:
    """The result of a pattern, element by element."""
    code = pattern.format(*(f"operands[{at}]" for at in range(len(operands))))
    for sign, operator in {"−": "-", "×": "*", "÷": "/", "³": "**3"}.items():
        code = code.replace(sign, operator)
    code = re.sub("(.+) if (.+) else (.+)", r"torch.where(\2, \1, \3)", code)
    result: Tensor = eval(code, {"torch": torch, "operands": operands})
    return result


def _formula(*by_slot: str) -> Rule:
    """The rule of elementwise functions: a formula for each input. Its names are `grad` and what the node saved."""

    def rule(node: Node) -> Iterable[Arithmetic]:
        if node.slot < len(by_slot):
            parts = re.split(r"\b(?!if|else)([a-z_]+)", by_slot[node.slot])
            names = list(dict.fromkeys([GRAD, *parts[1::2]]))
            parts[1::2] = [f"{{{names.index(name)}}}" for name in parts[1::2]]
            yield _made(node, "".join(parts), {name: node.saved[name] for name in names[1:]})

    return rule


def _moved(value: Tensor, words: str) -> list[Arithmetic]:
    """A node that brings each element of the cotangent to its place, and passes on 0 elsewhere."""
    return [Arithmetic("{}", {GRAD: value}, value, words=words)]


def _squashed(pattern: str, backward: Callable[[Tensor, Tensor], Tensor]) -> Rule:
    def rule(node: Node) -> Iterable[Arithmetic]:
        result = node.saved["result"]
        yield _made(node, pattern, {"result": result}, terms=backward(node.grad, result))

    return rule


def _pow(node: Node) -> Iterable[Arithmetic]:
    base, exponent = node.saved["self"], node.saved["exponent"]
    if node.slot == 0 and isinstance(exponent, (int, float)) and exponent != 0:
        power = "{1}" if exponent == 2 else f"{{1}}^{exponent - 1:g}"
        terms = node.grad * (exponent * base.pow(exponent - 1))
        yield _made(node, f"{{0}} × ({exponent:g} × {power})", {"self": base}, terms=terms)


def _add(node: Node) -> Iterable[Arithmetic]:
    if node.slot == 0 or node.saved["alpha"] == 1:
        yield from (_made(node, "{}"), _made(node, "−{}"))


def _norm(node: Node) -> Iterable[Arithmetic]:
    if node.saved["ord"] == 2 and node.saved["dim"] is None:
        norm = node.saved["result"]
        yield _made(node, "{} × {}", {"(self ÷ norm)": (node.saved["self"] / norm).masked_fill(norm == 0, 0)})


def _clamp(node: Node) -> Iterable[Arithmetic]:
    value, low, high = node.saved["self"], node.saved.get("min"), node.saved.get("max")
    # Exactly at a bound the slope is 1 up to PyTorch 2.13, and 0 from 2.14 on.
    for above, below in ((torch.ge, torch.le), (torch.gt, torch.lt)):
        inside = torch.ones_like(value, dtype=torch.bool)
        inside = inside if low is None else inside & above(value, low)
        inside = inside if high is None else inside & below(value, high)
        yield _made(node, "{} if {} else 0", {"inside the bounds": inside})


def _spread(node: Node) -> Tensor:
    """The cotangent of a reduction, repeated for each element that was reduced."""
    grad, dims = node.grad, node.saved.get("dim")
    if dims is not None and not node.saved.get("keepdim", False):
        count = len(node.shape)
        for dim in sorted(signed(at) % count for at in ((dims,) if isinstance(dims, int) else dims)):
            grad = grad.unsqueeze(dim)
    return grad.expand(node.shape)


def _nansum(node: Node) -> Iterable[Arithmetic]:
    grad, number = _spread(node), node.saved["self"].isnan().logical_not()
    yield _made(node, "{} if {} else 0", {"not isnan(self)": number}, grad=grad, terms=grad * number)


def _index(node: Node) -> Iterable[Arithmetic]:
    zeros = node.grad.new_zeros(node.shape)
    value = torch.ops.aten.index_put(zeros, list(node.saved["indices"]), node.grad, True)
    return _moved(value, "grad where picked, else 0")


def _index_put(node: Node) -> Iterable[Arithmetic]:
    if node.slot != 0 or node.saved["accumulate"]:
        return []
    value = torch.ops.aten.index_put(node.grad, list(node.saved["indices"]), node.grad.new_zeros(()))
    return _moved(value, "grad, 0 where overwritten")


def _slice(node: Node) -> Iterable[Arithmetic]:
    saved = node.saved
    end = 2**63 - 1 if saved["end"] is None else saved["end"]
    ends = saved["dim"], saved["start"] or 0, end, saved["step"]
    return _moved(torch.ops.aten.slice_backward(node.grad, list(node.shape), *ends), "grad in the slice, else 0")


def _select(node: Node) -> Iterable[Arithmetic]:
    dim, index = signed(node.saved["dim"]), signed(node.saved["index"])
    value = torch.ops.aten.select_backward(node.grad, list(node.shape), dim, index)
    return _moved(value, f"grad at index {index}, else 0")


def _product(left: Tensor, right: Tensor, names: tuple[str, str], value: Tensor) -> Arithmetic:
    """The arithmetic of `left @ right`, whose terms have the shape [inner, rows, columns]."""

    def of_left(tensor: Tensor) -> Tensor:
        return tensor.t().unsqueeze(2)

    def of_right(tensor: Tensor) -> Tensor:
        return tensor.unsqueeze(1)

    operands = {names[0]: of_left(left), names[1]: of_right(right)}
    arranged = of_left if names[0] == GRAD else of_right
    operands = {GRAD: operands[GRAD], **operands}  # the cotangent comes first
    return Arithmetic("{} × {}", operands, value, of_left(left) * of_right(right), " @ ".join(names), arranged)


def _mm(node: Node) -> Iterable[Arithmetic]:
    saved, slot = node.saved, node.slot - ("mat1" in node.saved)
    if saved.get("beta" if slot == -1 else "alpha", 1) != 1:
        return
    if slot == 0:
        other = saved["mat2"].t()
        yield _product(node.grad, other, (GRAD, "mat2.T"), node.grad.mm(other))
    elif slot == 1:
        name = "mat1" if "mat1" in saved else "self"
        other = saved[name].t()
        yield _product(other, node.grad, (f"{name}.T", GRAD), other.mm(node.grad))
    elif slot == -1:
        yield _made(node, "{}")


def _mv(node: Node) -> Iterable[Arithmetic]:
    column, vector, matrix = node.grad.unsqueeze(1), node.saved["vec"], node.saved["self"]
    if node.slot == 0:
        yield _product(column, vector.unsqueeze(0), (GRAD, "vec"), node.grad.ger(vector))
    else:
        value, terms = matrix.t().mv(node.grad), matrix * column
        operands = {GRAD: column, "self.T": matrix}
        yield Arithmetic("{} × {}", operands, value, terms, "self.T @ grad", lambda tensor: tensor.unsqueeze(1))


RULES: dict[str, Rule] = {
    "mul": _formula("grad × other", "grad × self"),
    "div": _formula("grad ÷ other", "−grad × ((self ÷ other) ÷ other)"),
    "exp": _formula("grad × result"),
    "reciprocal": _formula("−grad × (result × result)"),
    "sqrt": _formula("grad ÷ (2 × result)"),
    "rsqrt": _formula("−0.5 × grad × result³"),
    "log": _formula("grad ÷ self"),
    "sigmoid": _squashed("{0} × (1 − {1}) × {1}", torch.ops.aten.sigmoid_backward),
    "tanh": _squashed("{0} × (1 − {1} × {1})", torch.ops.aten.tanh_backward),
    "pow": _pow,
    **dict.fromkeys(("add", "sub"), _add),
    "neg": _formula("−grad"),
    "abs": lambda node: [_made(node, "{} × {}", {"sign(self)": node.saved["self"].sgn()})],
    "linalg_vector_norm": _norm,
    "where": _formula("grad if condition else 0", "0 if condition else grad"),
    "masked_fill": _formula("0 if mask else grad"),
    **dict.fromkeys(("clamp", "clamp_min", "clamp_max"), _clamp),
    "relu": _formula("grad if result > 0 else 0"),
    "sum": lambda node: _moved(_spread(node), "grad, for every element"),
    "mean": lambda node: [
        _made(node, f"{{}} ÷ {node.passed.numel() // max(node.grad.numel(), 1)}", grad=_spread(node))
    ],
    "nansum": _nansum,
    "index": _index,
    "index_put": _index_put,
    # The node does not save which elements were written to. They are the elements that it passes no cotangent to.
    "copy_slices": lambda node: _moved(torch.where(node.passed == 0, 0, node.grad), "grad, 0 where overwritten"),
    "slice": _slice,
    "select": _select,
    **dict.fromkeys(("t", "transpose"), lambda node: _moved(node.grad.t(), "grad, transposed")),
    **dict.fromkeys(
        ("view", "unsafe_view", "reshape_alias", "squeeze", "unsqueeze", "clone", "alias"),
        lambda node: _moved(node.grad.reshape(node.shape), "grad, in the input's shape"),
    ),
    "expand": lambda node: [_made(node, "{}", words="grad, summed over the copies")],
    **dict.fromkeys(("mm", "addmm", "linear"), _mm),
    "mv": _mv,
}
"""The rules by the function's name. A rule gives every arithmetic by which a release of PyTorch computes it."""
