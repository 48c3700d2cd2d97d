"""The test of a finding: about ten lines to paste, which fail until the loss is fixed."""

from __future__ import annotations

import contextlib
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ..program.tensors import tensors_in
from .kinds import Kind
from .running import Case, Loss

MOST_ELEMENTS = 400
"""The number of elements up to which a test has the inputs as text."""

_MOST_ROWS = 8

_PLAIN = (int, float, bool, str, bytes, type(None), torch.dtype)


def test_of(loss: Loss, case: Case, kinds: list[Kind]) -> str:
    """A test that fails on a case, run once to see that it does; empty if the inputs can't be written as text."""
    if sum(tensor.numel() for tensor in case.tensors) > MOST_ELEMENTS:
        return ""
    rounded = _rounded(case, kinds)
    for written in (*_of_one_row(loss, rounded), rounded, case):
        with contextlib.suppress(ValueError):
            text, name = _text(loss, written)
            if loss.is_failed_by(text, name):
                return text
    return ""


def _of_one_row(loss: Loss, case: Case) -> Iterator[Case]:
    """The case with one row of each input, if one row of the example does not fail for another reason."""
    rows = {len(tensor) for tensor in case.tensors if tensor.dim()}
    for row in range(min(_MOST_ROWS, *rows) if len(rows) == 1 and rows != {1} else 0):
        few, example = (
            each._replace(tensors=tuple(tensor[row : row + 1] if tensor.dim() else tensor for tensor in each.tensors))
            for each in (case, loss.example)
        )
        before = loss.numbers(example)
        if before is not None and before.is_finite and loss.fails(few):
            yield few


def _rounded(case: Case, kinds: list[Kind]) -> Case:
    """The case with numbers of three digits, as far as this keeps their kind."""
    pairs = zip(case.tensors, kinds, strict=True)
    return case._replace(
        tensors=tuple(_of_digits(tensor, 3) if kind in ("numbers", "positives") else tensor for tensor, kind in pairs)
    )


def _of_digits(tensor: Tensor, digits: int) -> Tensor:
    numbers = [float(f"{number:.{digits}g}") for number in tensor.flatten().tolist()]
    return torch.tensor(numbers, dtype=tensor.dtype, device=tensor.device).reshape(tensor.shape)


def _text(loss: Loss, case: Case) -> tuple[str, str]:
    """The test, and the name that it calls the loss by."""
    name, imports = _name_of(loss.function)
    names = iter(loss.names)
    lines, called, wanted = [], [], []
    for at, thing in enumerate(loss.inputs_of(case)):
        here = [next(names) for _ in tensors_in(thing)]
        if isinstance(thing, Tensor):
            variable = here[0] if here[0].isidentifier() and here[0] != name else f"input_{at}"
            lines.append(f"{variable} = {_expression(thing)}")
            wanted += [f"{variable}.grad"] if thing.requires_grad else []
        called.append(variable if isinstance(thing, Tensor) else _expression(thing))
    if case.factor != 1:
        if not isinstance(loss.function, nn.Module):
            raise ValueError("the test can't name the parameters")
        lines.append(f"for parameter in {name}.parameters():\n    parameter.data *= {case.factor:g}")
    if loss.is_random:
        lines.append(f"torch.manual_seed({loss.seed})")
    lines.append(f"loss = {name}({', '.join(called)}){loss.path}")
    lines.append("assert loss.isfinite()")
    if wanted or loss.parameters:
        lines.append("loss.backward()")
    lines += [f"assert {gradient}.isfinite().all()" for gradient in wanted]
    if isinstance(loss.function, nn.Module) and loss.parameters:
        lines.append(f"for parameter in {name}.parameters():")
        lines.append("    assert parameter.grad is None or parameter.grad.isfinite().all()")
    head = "\n".join(["import torch", *filter(None, [imports])])
    title = f"def test_{name.rpartition('.')[2].strip('_')}_is_finite():"
    return f"{head}\n\n\n{title}\n" + textwrap.indent("\n".join(lines), "    ") + "\n", name


def _name_of(function: Callable[..., Any]) -> tuple[str, str]:
    """A name for a loss, and the line that imports it; empty if it is in no module that can be imported."""
    name, module = getattr(function, "__qualname__", ""), getattr(function, "__module__", None) or ""
    if name.isidentifier() and getattr(sys.modules.get(module), name, None) is function:
        return name, "" if module == "__main__" else f"from {module} import {name}"
    return name if name.isidentifier() else "loss_fn", ""


def _expression(thing: Any) -> str:
    """An input as code."""
    if isinstance(thing, Tensor):
        return _tensor(thing)
    if type(thing) in (tuple, list):
        parts = ", ".join(map(_expression, thing))
        return f"[{parts}]" if isinstance(thing, list) else f"({parts},)"
    if type(thing) is dict:
        return f"{{{', '.join(f'{key!r}: {_expression(value)}' for key, value in thing.items())}}}"
    if type(thing) not in _PLAIN:
        raise ValueError(f"no code for {type(thing).__name__}")
    return repr(thing)


def _tensor(tensor: Tensor) -> str:
    values = tensor.detach()
    options = [] if values.dtype in (torch.float32, torch.int64, torch.bool) else [f"dtype={values.dtype}"]
    options += [] if values.device.type == "cpu" else [f"device={str(values.device)!r}"]
    options += ["requires_grad=True"] * tensor.requires_grad
    if values.numel() > 8 and bool((values == values.flatten()[0]).all()):
        start = f"torch.full({tuple(values.shape)}, {_number(values.flatten()[0].item(), values)}"
    else:
        start = f"torch.tensor({_numbers(values)}"
    return f"{', '.join([start, *options])})"


def _numbers(values: Tensor) -> str:
    if not values.dim():
        return _number(values.item(), values)
    return f"[{', '.join(map(_numbers, values))}]"


def _number(number: float, values: Tensor) -> str:
    """A number with as many digits as its dtype needs."""
    if not values.is_floating_point():
        return repr(number)
    shorter = (float(f"{number:.{digits}g}") for digits in range(1, 17))
    return repr(next((each for each in shorter if torch.tensor(each, dtype=values.dtype).item() == number), number))
