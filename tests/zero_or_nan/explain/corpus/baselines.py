"""What people use today, run on a program: which line it names, and whether it says anything at all.

- `anomaly_mode`: `torch.autograd.detect_anomaly`, forward and backward under it.
- `forward_hooks`: of the kind of `DebugUnderflowOverflow` in Hugging Face's transformers, which looks at each module's
  own parameters, inputs and outputs when its forward returns, and stops at the first that has a NaN or an infinity. Its
  hooks are on the modules of one model; these are on every module, losses included.
- `loss_and_parameters`: of the kind of PyTorch Lightning's `check_finite_loss` and `detect_nan_parameters` (its
  `terminate_on_nan` of old): the loss before backward, the parameters after it. It names no line.
"""

import re
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from .program import Program


@dataclass(frozen=True)
class Told:
    """Whether a tool said that something is not finite, and the program's line that it named."""

    anything: bool
    line: int | None = None


def anomaly_mode(program: Program) -> Told:
    """The innermost line of the program in the traceback that anomaly mode warns with."""
    with warnings.catch_warnings(record=True) as warned, torch.autograd.set_detect_anomaly(True):
        warnings.simplefilter("always")
        try:
            program.run()
        except RuntimeError as error:
            if "returned nan values" not in str(error):
                raise
        else:
            return Told(False)
    text = "".join(str(warning.message) for warning in warned if "Traceback of forward call" in str(warning.message))
    lines = re.findall(rf'File "{re.escape(program.filename)}", line (\d+)', text.partition("Previous calculation")[0])
    return Told(True, int(lines[-1]) if lines else None)


def forward_hooks(program: Program) -> Told:
    """The line that called the first module with a parameter, an input or an output that is not finite."""

    def look(module: nn.Module, args: Any, result: Any) -> None:
        looked_at = [*module.parameters(recurse=False), *_flat(args), *_flat(result)]
        if not all(bool(tensor.isfinite().all()) for tensor in looked_at):
            raise _Found(_caller(program.filename))

    handle = nn.modules.module.register_module_forward_hook(look)
    try:
        program.run()
    except _Found as found:
        return Told(True, found.line)
    finally:
        handle.remove()
    return Told(False)


def loss_and_parameters(program: Program) -> Told:
    """Whether a loss, or after a pass a parameter, is not finite."""
    parameters: dict[Tensor, None] = {}
    found = False

    def wrapped(plain: Callable[..., Any]) -> Callable[..., Any]:
        def run(roots: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal found
            losses = [roots] if isinstance(roots, Tensor) else list(roots)
            for loss in losses:
                parameters.update(_leaves(loss))
            found |= _any_not_finite(losses)
            result = plain(roots, *args, **kwargs)
            found |= _any_not_finite(parameters)
            return result

        return run

    with (
        patch.object(torch.autograd, "backward", wrapped(torch.autograd.backward)),
        patch.object(torch.autograd, "grad", wrapped(torch.autograd.grad)),
    ):
        program.run()
    return Told(found or _any_not_finite(parameters))


BASELINES: dict[str, Callable[[Program], Told]] = {
    "anomaly mode": anomaly_mode,
    "forward hooks": forward_hooks,
    "loss and parameters": loss_and_parameters,
}


class _Found(Exception):
    def __init__(self, line: int | None) -> None:
        super().__init__(line)
        self.line = line


def _caller(filename: str) -> int | None:
    """The line of the innermost frame that is neither PyTorch's nor this file's, where that is the program's."""
    torch_folder, frame = str(Path(torch.__file__).parent), sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if name != __file__ and not name.startswith(torch_folder):
            return frame.f_lineno if name == filename else None
        frame = frame.f_back
    return None


def _flat(value: Any) -> list[Tensor]:
    """The tensors of an output: itself, or those of a tuple and of tuples in it."""
    if isinstance(value, Tensor):
        return [value]
    return [tensor for part in value for tensor in _flat(part)] if isinstance(value, tuple) else []


def _leaves(loss: Tensor) -> dict[Tensor, None]:
    found: dict[Any, None] = {}
    waiting = [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in found:
            found[node] = None
            waiting += [following for following, _ in node.next_functions]
    return {node.variable: None for node in found if hasattr(node, "variable")}


def _any_not_finite(tensors: Any) -> bool:
    return any(not bool(tensor.isfinite().all()) for tensor in tensors)
