"""The operators that a MaskedTensor has. Each runs forward and backward, and is compared with its reference."""

from __future__ import annotations

import html
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.masked import MaskedTensor, masked_tensor

from helpers import show

from ..project import Project
from .records import RELEASE, by_release, keep_release, per_release, prose

DATA = torch.tensor([[0.25, 0.8, 0.5], [0.75, 0.375, 0.6]])
MASK = torch.tensor([[True, False, True], [True, True, False]])
WEIGHT = torch.tensor([[2.0, 3.0, 5.0], [7.0, 11.0, 13.0]])

Reference = Callable[[Tensor, Tensor], Tensor]
"""Computes the unmasked elements of the result from plain data and the mask. It uses only unmasked elements."""


@dataclass(frozen=True)
class Operator:
    """One line of the table.

    Attributes:
        code: a Python expression in the masked tensor `x`, which the table shows.
        reference: the same computation in float64 on plain data, which uses only the unmasked elements.
    """

    code: str
    reference: Reference


def each(function: Callable[[Tensor], Tensor]) -> Reference:
    """The reference of a function that computes each element from one element."""
    return lambda x, mask: function(x[mask])


def rows(function: Callable[[Tensor], Tensor]) -> Reference:
    """The reference of a function that computes each row from one row."""
    return lambda x, mask: torch.cat([function(row[used]).reshape(-1) for row, used in zip(x, mask, strict=True)])


def moved(function: Callable[[Tensor], Tensor]) -> Reference:
    """The reference of a function that moves elements, or leaves some out, together with their mask."""
    return lambda x, mask: function(x)[function(mask)]


def _weighted(x: Tensor, mask: Tensor) -> Tensor:
    """x @ WEIGHT.T without the masked elements in the sums."""
    return (torch.where(mask, x, 0) @ WEIGHT.to(x).T).flatten()


_FUNCTIONS = (
    *("exp", "log", "sqrt", "rsqrt", "reciprocal", "sin", "tanh", "sigmoid", "asin", "erf", "expm1", "log1p"),
    *("neg", "abs", "square", "sign", "round", "isnan", "relu", "logit", "lgamma"),
)

OPERATORS: dict[str, tuple[Operator, ...]] = {  # by the caption of their table
    "Element by element": (
        *(Operator(f"x.{name}()", each(getattr(Tensor, name))) for name in _FUNCTIONS),
        Operator("x.clamp(max=0.5)", each(lambda x: x.clamp(max=0.5))),
        Operator("x.nan_to_num()", each(lambda x: x)),
        Operator("F.gelu(x)", each(F.gelu)),
        Operator("F.softplus(x)", each(F.softplus)),
        Operator("F.leaky_relu(x)", each(F.leaky_relu)),
    ),
    "Two tensors": (
        Operator("x + x", each(lambda x: x + x)),
        Operator("x * 2", each(lambda x: x * 2)),
        Operator("x - weight", lambda x, mask: x[mask] - WEIGHT.to(x)[mask]),
        Operator("x * weight", lambda x, mask: x[mask] * WEIGHT.to(x)[mask]),
        Operator("x / weight", lambda x, mask: x[mask] / WEIGHT.to(x)[mask]),
        Operator("weight / x", lambda x, mask: WEIGHT.to(x)[mask] / x[mask]),
        Operator("x ** 2", each(lambda x: x**2)),
        Operator("torch.maximum(x, x.sqrt())", each(lambda x: torch.maximum(x, x.sqrt()))),
        Operator("torch.atan2(x, weight)", lambda x, mask: torch.atan2(x[mask], WEIGHT.to(x)[mask])),
        Operator("torch.where(mask, x, 0 * weight)", lambda x, mask: torch.where(mask, x, 0).flatten()),
        Operator("x > 0.4", each(lambda x: x > 0.4)),
    ),
    "Reductions": (
        Operator("x.sum()", each(torch.sum)),
        Operator("x.sum(1)", rows(torch.sum)),
        Operator("x.mean()", each(torch.mean)),
        Operator("x.mean(1)", rows(torch.mean)),
        Operator("x.prod()", each(torch.prod)),
        Operator("x.prod(1)", rows(torch.prod)),
        Operator("x.amax()", each(torch.amax)),
        Operator("x.amax(1)", rows(torch.amax)),
        Operator("x.amin(1)", rows(torch.amin)),
        Operator("x.max()", each(torch.max)),
        Operator("x.max(1).values", rows(torch.max)),
        Operator("x.argmax(1)", lambda x, mask: torch.where(mask, x, -torch.inf).argmax(1)),
        Operator("x.var(1)", rows(torch.var)),
        Operator("x.std()", each(torch.std)),
        Operator("x.median()", each(torch.median)),
        Operator("x.norm()", each(torch.norm)),
        Operator("torch.linalg.vector_norm(x)", each(torch.linalg.vector_norm)),
        Operator("x.logsumexp(1)", rows(lambda x: x.logsumexp(0))),
        Operator("x.nansum()", each(torch.nansum)),
        Operator("x.all()", each(lambda x: (x != 0).all())),
    ),
    "Along a row": (
        Operator("x.softmax(1)", rows(lambda x: x.softmax(0))),
        Operator("x.log_softmax(1)", rows(lambda x: x.log_softmax(0))),
        Operator("F.softmin(x, 1)", rows(lambda x: F.softmin(x, 0))),
        Operator("x.cumsum(1)", rows(lambda x: x.cumsum(0))),
        Operator("x.cumprod(1)", rows(lambda x: x.cumprod(0))),
        Operator("x.sort(1).values", rows(lambda x: x.sort().values)),
        Operator("F.normalize(x, dim=1)", rows(lambda x: F.normalize(x, dim=0))),
        Operator("F.layer_norm(x, [3])", rows(lambda x: (x - x.mean()) / (x.var(correction=0) + 1e-5).sqrt())),
    ),
    "Shape and index": (
        Operator("x.T", moved(lambda x: x.T)),
        Operator("x.transpose(0, 1)", moved(lambda x: x.T)),
        Operator("x.reshape(3, 2)", moved(lambda x: x.reshape(3, 2))),
        Operator("x.view(-1)", moved(lambda x: x.view(-1))),
        Operator("x.unsqueeze(0)", moved(lambda x: x.unsqueeze(0))),
        Operator("x.expand(2, 2, 3)", moved(lambda x: x.expand(2, 2, 3))),
        Operator("x[0]", moved(lambda x: x[0])),
        Operator("x[:, :2]", moved(lambda x: x[:, :2])),
        Operator("x[mask]", moved(lambda x: x[MASK])),
        Operator("torch.cat([x, x])", moved(lambda x: torch.cat([x, x]))),
        Operator("torch.stack([x, x])", moved(lambda x: torch.stack([x, x]))),
        Operator("x.flip(1)", moved(lambda x: x.flip(1))),
        Operator("x.clone()", moved(lambda x: x)),
        Operator("x.contiguous()", moved(lambda x: x)),
    ),
    "Products, layers, losses": (
        Operator("x @ weight.T", _weighted),
        Operator("weight @ x.T", lambda x, mask: (WEIGHT.to(x) @ torch.where(mask, x, 0).T).flatten()),
        Operator("F.linear(x, weight)", _weighted),
        Operator("torch.einsum('ij,kj->ik', x, weight)", _weighted),
        Operator("F.mse_loss(x, x.detach() * 2)", each(lambda x: F.mse_loss(x, x.detach() * 2))),
        Operator("F.l1_loss(x, x.detach() * 2)", each(lambda x: F.l1_loss(x, x.detach() * 2))),
        Operator("F.dropout(x, 0.0)", each(lambda x: x)),
        Operator("x.to(torch.float64)", each(lambda x: x)),
        Operator("x.detach()", each(lambda x: x.detach())),
    ),
}

WORKS, WRONG, NONE = "works", "wrong", "no gradient"


def measured(operator: Operator) -> tuple[str, str]:
    """What an operator does in forward and in backward: it works, gives another result than its reference, or raises.

    The loss is the sum of the result's squares, so that the elements of the result get different gradients.

    Returns:
        The two outcomes: `works`, `wrong`, or the name of an exception. For backward also `no gradient`, if the result
        has none, and the empty text, if forward raised.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exact = DATA.double().requires_grad_()
        wanted = operator.reference(exact, MASK).reshape(-1)
        x = masked_tensor(DATA.clone(), MASK, requires_grad=True)
        try:
            result = eval(operator.code, {"x": x, "mask": MASK, "weight": WEIGHT, "F": F, "torch": torch})
            forward = WORKS if _same(_used(result), wanted) else WRONG
        except Exception as error:
            return type(error).__name__, ""
        if not wanted.requires_grad:
            return forward, NONE
        (gradient,) = torch.autograd.grad(wanted.square().sum(), exact)
        try:
            (result * result).sum().backward()
            found = x.grad
        except Exception as error:
            return forward, type(error).__name__
        kept = found.get_mask() if isinstance(found, MaskedTensor) else torch.ones_like(MASK)
        values = found.get_data() if isinstance(found, MaskedTensor) else found
        if values is None:
            return forward, WRONG
        values = torch.where(kept, values, 0)  # a masked gradient is right if the loss doesn't use the element
        return forward, WORKS if _same(values, gradient) else WRONG


def _used(result: Any) -> Tensor:
    """The unmasked elements of a result."""
    if isinstance(result, MaskedTensor):
        return result.get_data()[result.get_mask()].detach()
    return result.detach().reshape(-1)


def _same(found: Tensor, wanted: Tensor) -> bool:
    return found.numel() == wanted.numel() and torch.allclose(found.double(), wanted.double(), rtol=1e-5, atol=1e-6)


def masked(project: Project) -> None:
    """Run every operator on this PyTorch, and add the outcomes to `results/measured/masked.json`."""
    found = {operator.code: list(measured(operator)) for group in OPERATORS.values() for operator in group}
    add(project, RELEASE, found)
    print(f"torch {RELEASE}: {working(found)} of {len(found)} operators work")


def working(outcomes: dict[str, list[str]]) -> int:
    """How many operators work in forward and, if the result has a gradient, also in backward."""
    return sum(outcome in ([WORKS, WORKS], [WORKS, NONE]) for outcome in outcomes.values())


def add(project: Project, release: str, outcomes: dict[str, list[str]]) -> Path:
    """Put the outcomes of a release into the record, next to the outcomes of other releases; return the file."""
    lines = [{"operator": code, "forward": pair[0], "backward": pair[1]} for code, pair in outcomes.items()]
    return keep_release(project, "masked", release, lines, "operator")


def recorded(content: dict[str, Any]) -> dict[str, dict[str, list[str]]]:
    """The outcomes in the record: by release, then by operator, forward and backward."""
    rows = by_release(content)
    return {name: {row["operator"]: [row["forward"], row["backward"]] for row in rows[name]} for name in rows}


# On the page.


def shown(record: dict[str, Any]) -> str:
    """One table for each group of operators."""
    content = recorded(record)
    tables = []
    for group, operators in OPERATORS.items():
        names = [operator.code for operator in operators]
        rows = [
            [
                f"<code>{html.escape(name)}</code>",
                *(per_release({release: _words(found[name][i]) for release, found in content.items()}) for i in (0, 1)),
            ]
            for name in names
        ]
        newest = list(content.values())[-1]
        count = working({name: newest[name] for name in names})
        caption = f"{html.escape(group)}: {count} of {len(names)} work on PyTorch {html.escape(list(content)[-1])}"
        tables.append(show.table(caption, ["operator", "forward", "backward"], rows, stack=True))
    return prose(*tables)


def _words(outcome: str) -> str:
    if outcome in (WORKS, ""):
        return outcome
    if outcome == NONE:
        return f'<span class="zn-masked">{NONE}</span>'
    text = WRONG if outcome == WRONG else f"raises {outcome}"
    return f'<span class="zn-nan">{html.escape(text)}</span>'
