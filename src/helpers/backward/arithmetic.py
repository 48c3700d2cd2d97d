"""The arithmetic inside a node of the graph: how it computes each element from the cotangent.

A rule says how a node computes the cotangent that it passes on. The figure uses a rule only if its result has the same
bits as the recorded cotangent. Otherwise the figure shows no arithmetic for this node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
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
    """The input of a rule.

    Attributes:
        grad: the cotangent that arrives.
        saved: everything that the node saved, by PyTorch's names.
        slot: the number of the input that the result is for.
        shape: the shape of this input.
        passed: the cotangent that the node passed on to this input.
    """

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


Rule = Callable[[Node], Iterator[Arithmetic]]
RULES: dict[str, Rule] = {}
"""The rules by the function's name.

A rule gives every arithmetic by which a release of PyTorch computes the derivative.
"""


def rule(*functions: str) -> Callable[[Rule], Rule]:
    """Register the rule for some functions."""

    def register(made: Rule) -> Rule:
        RULES.update(dict.fromkeys(functions, made))
        return made

    return register


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


def _made(node: Node, pattern: str, terms: Tensor, **operands: Any) -> Arithmetic:
    """Elementwise arithmetic. If the forward pass broadcast the input, the terms are summed."""
    if terms.shape == node.shape:
        return Arithmetic(pattern, {GRAD: node.grad, **operands}, terms)
    return Arithmetic(pattern, {GRAD: node.grad, **operands}, terms.sum_to_size(node.shape), terms)


# Elementwise functions.


@rule("mul")
def _(node: Node) -> Iterator[Arithmetic]:
    name = "other" if node.slot == 0 else "self"
    factor = node.saved[name]
    yield _made(node, "{} × {}", node.grad * factor, **{name: factor})


@rule("div")
def _(node: Node) -> Iterator[Arithmetic]:
    other = node.saved["other"]
    if node.slot == 0:
        yield _made(node, "{} ÷ {}", node.grad / other, other=other)
    else:
        above = node.saved["self"]
        terms = -node.grad * ((above / other) / other)
        yield _made(node, "−{} × (({1} ÷ {2}) ÷ {2})".replace("{}", "{0}"), terms, self=above, other=other)


@rule("exp")
def _(node: Node) -> Iterator[Arithmetic]:
    result = node.saved["result"]
    yield _made(node, "{} × {}", node.grad * result, result=result)


@rule("reciprocal")
def _(node: Node) -> Iterator[Arithmetic]:
    result = node.saved["result"]
    yield _made(node, "−{0} × ({1} × {1})", -node.grad * (result * result), result=result)


@rule("sqrt")
def _(node: Node) -> Iterator[Arithmetic]:
    result = node.saved["result"]
    yield _made(node, "{} ÷ (2 × {})", node.grad / (2 * result), result=result)


@rule("rsqrt")
def _(node: Node) -> Iterator[Arithmetic]:
    result = node.saved["result"]
    yield _made(node, "−0.5 × {} × {}³", -0.5 * node.grad * result.pow(3), result=result)


@rule("log")
def _(node: Node) -> Iterator[Arithmetic]:
    yield _made(node, "{} ÷ {}", node.grad.div(node.saved["self"]), self=node.saved["self"])


@rule("sigmoid")
def _(node: Node) -> Iterator[Arithmetic]:
    result = node.saved["result"]
    yield _made(node, "{0} × (1 − {1}) × {1}", torch.ops.aten.sigmoid_backward(node.grad, result), result=result)


@rule("tanh")
def _(node: Node) -> Iterator[Arithmetic]:
    result = node.saved["result"]
    yield _made(node, "{0} × (1 − {1} × {1})", torch.ops.aten.tanh_backward(node.grad, result), result=result)


@rule("pow")
def _(node: Node) -> Iterator[Arithmetic]:
    base, exponent = node.saved["self"], node.saved["exponent"]
    if node.slot == 0 and isinstance(exponent, (int, float)) and exponent != 0:
        terms = node.grad * (exponent * base.pow(exponent - 1))
        power = "{1}" if exponent == 2 else f"{{1}}^{exponent - 1:g}"
        yield _made(node, f"{{0}} × ({exponent:g} × {power})", terms, self=base)


@rule("add", "sub")
def _(node: Node) -> Iterator[Arithmetic]:
    if node.slot == 0 or node.saved["alpha"] == 1:
        yield _made(node, "{}", node.grad)
        yield _made(node, "−{}", -node.grad)


@rule("neg")
def _(node: Node) -> Iterator[Arithmetic]:
    yield _made(node, "−{}", -node.grad)


@rule("abs")
def _(node: Node) -> Iterator[Arithmetic]:
    sign = node.saved["self"].sgn()
    yield _made(node, "{} × {}", node.grad * sign, **{"sign(self)": sign})


@rule("linalg_vector_norm")
def _(node: Node) -> Iterator[Arithmetic]:
    if node.saved["ord"] == 2 and node.saved["dim"] is None:
        norm = node.saved["result"]
        unit = (node.saved["self"] / norm).masked_fill(norm == 0, 0)
        yield _made(node, "{} × {}", node.grad * unit, **{"(self ÷ norm)": unit})


# Functions that pass on some elements, and 0 for the others.


@rule("where")
def _(node: Node) -> Iterator[Arithmetic]:
    condition, zero = node.saved["condition"], node.grad.new_zeros(())
    if node.slot == 0:
        yield _made(node, "{} if {} else 0", torch.where(condition, node.grad, zero), condition=condition)
    else:
        yield _made(node, "0 if {1} else {0}", torch.where(condition, zero, node.grad), condition=condition)


@rule("masked_fill")
def _(node: Node) -> Iterator[Arithmetic]:
    mask = node.saved["mask"]
    if node.slot == 0:
        yield _made(node, "0 if {1} else {0}", node.grad.masked_fill(mask, 0), mask=mask)


@rule("clamp", "clamp_min", "clamp_max")
def _(node: Node) -> Iterator[Arithmetic]:
    value, zero = node.saved["self"], node.grad.new_zeros(())
    low, high = node.saved.get("min"), node.saved.get("max")
    # Exactly at a bound the slope is 1 up to PyTorch 2.13, and 0 from 2.14 on.
    for above, below in ((torch.ge, torch.le), (torch.gt, torch.lt)):
        inside = torch.ones_like(value, dtype=torch.bool)
        inside = inside if low is None else inside & above(value, low)
        inside = inside if high is None else inside & below(value, high)
        made = torch.where(inside, node.grad, zero)
        yield _made(node, "{} if {} else 0", made, **{"inside the bounds": inside})


@rule("relu")
def _(node: Node) -> Iterator[Arithmetic]:
    positive = node.saved["result"] > 0
    made = torch.where(positive, node.grad, node.grad.new_zeros(()))
    yield _made(node, "{} if {} else 0", made, **{"result > 0": positive})


# Sums and means: each cotangent is for many elements.


def _spread(node: Node) -> Tensor:
    """The cotangent of a reduction, repeated for each element that was reduced."""
    grad, dims = node.grad, node.saved.get("dim")
    if dims is not None and not node.saved.get("keepdim", False):
        count = len(node.shape)
        for dim in sorted(signed(at) % count for at in ((dims,) if isinstance(dims, int) else dims)):
            grad = grad.unsqueeze(dim)
    return grad.expand(node.shape)


@rule("sum")
def _(node: Node) -> Iterator[Arithmetic]:
    yield Arithmetic("{}", {GRAD: _spread(node)}, _spread(node), words="grad, for every element")


@rule("mean")
def _(node: Node) -> Iterator[Arithmetic]:
    count = node.passed.numel() // max(node.grad.numel(), 1)
    yield Arithmetic(f"{{}} ÷ {count}", {GRAD: _spread(node)}, _spread(node) / count)


@rule("nansum")
def _(node: Node) -> Iterator[Arithmetic]:
    number = node.saved["self"].isnan().logical_not()
    operands = {GRAD: _spread(node), "not isnan(self)": number}
    yield Arithmetic("{} if {} else 0", operands, _spread(node) * number)


# Functions that move elements: the cotangent moves back.


@rule("index")
def _(node: Node) -> Iterator[Arithmetic]:
    zeros = node.grad.new_zeros(node.shape)
    value = torch.ops.aten.index_put(zeros, list(node.saved["indices"]), node.grad, True)
    yield Arithmetic("{}", {GRAD: value}, value, words="grad where picked, else 0")


@rule("index_put")
def _(node: Node) -> Iterator[Arithmetic]:
    indices = list(node.saved["indices"])
    if node.slot == 0 and not node.saved["accumulate"]:
        value = torch.ops.aten.index_put(node.grad, indices, node.grad.new_zeros(()))
        yield Arithmetic("{}", {GRAD: node.grad}, value, words="grad, 0 where overwritten")


@rule("copy_slices")
def _(node: Node) -> Iterator[Arithmetic]:
    # The node does not save which elements were written to. They are the elements that it passes no cotangent to.
    if node.shape == node.grad.shape:
        value = torch.where(node.passed == 0, 0, node.grad)
        yield Arithmetic("{}", {GRAD: node.grad}, value, words="grad, 0 where overwritten")


@rule("slice")
def _(node: Node) -> Iterator[Arithmetic]:
    saved = node.saved
    end = 2**63 - 1 if saved["end"] is None else saved["end"]
    ends = saved["dim"], saved["start"] or 0, end, saved["step"]
    value = torch.ops.aten.slice_backward(node.grad, list(node.shape), *ends)
    yield Arithmetic("{}", {GRAD: value}, value, words="grad in the slice, else 0")


@rule("select")
def _(node: Node) -> Iterator[Arithmetic]:
    dim, index = signed(node.saved["dim"]), signed(node.saved["index"])
    value = torch.ops.aten.select_backward(node.grad, list(node.shape), dim, index)
    yield Arithmetic("{}", {GRAD: value}, value, words=f"grad at index {index}, else 0")


@rule("t", "transpose")
def _(node: Node) -> Iterator[Arithmetic]:
    if node.grad.dim() == 2:
        yield Arithmetic("{}", {GRAD: node.grad.t()}, node.grad.t(), words="grad, transposed")


@rule("view", "unsafe_view", "reshape_alias", "squeeze", "unsqueeze", "clone", "alias")
def _(node: Node) -> Iterator[Arithmetic]:
    value = node.grad.reshape(node.shape)
    yield Arithmetic("{}", {GRAD: value}, value, words="grad, in the input's shape")


@rule("expand")
def _(node: Node) -> Iterator[Arithmetic]:
    value = node.grad.sum_to_size(node.shape)
    yield Arithmetic("{}", {GRAD: node.grad}, value, node.grad, words="grad, summed over the copies")


# Matrix products: each element is a sum of products.


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


@rule("mm", "addmm", "linear")
def _(node: Node) -> Iterator[Arithmetic]:
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
        yield _made(node, "{}", node.grad)


@rule("mv")
def _(node: Node) -> Iterator[Arithmetic]:
    if node.slot == 0:
        value = node.grad.ger(node.saved["vec"])
        yield _product(node.grad.unsqueeze(1), node.saved["vec"].unsqueeze(0), (GRAD, "vec"), value)
    else:
        matrix = node.saved["self"].t()
        operands = {GRAD: node.grad.unsqueeze(1), "self.T": node.saved["self"]}
        terms = node.saved["self"] * node.grad.unsqueeze(1)
        value = matrix.mv(node.grad)
        yield Arithmetic("{} × {}", operands, value, terms, "self.T @ grad", lambda tensor: tensor.unsqueeze(1))
