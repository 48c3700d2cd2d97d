"""What people use today, run on a program: the line that it names, and whether it reports anything.

PyTorch has `DebugMode` from some release on. The last two tools are measured where they are installed.
"""

import contextlib
import importlib
import importlib.metadata
import importlib.util
import io
import re
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from zero_or_nan.ignoring.inside import graph_from, leaves_of


@dataclass(frozen=True)
class Told:
    """Whether a tool said that something is not finite, and the program's line that it named."""

    anything: bool
    line: int | None = None


def anomaly_mode(program: Callable[[], Any]) -> Told:
    """The innermost line of the program in the traceback that anomaly mode warns with."""
    with warnings.catch_warnings(record=True) as warned, torch.autograd.set_detect_anomaly(True):
        warnings.simplefilter("always")
        try:
            program()
        except RuntimeError as error:
            if "returned nan values" not in str(error):
                raise
        else:
            return Told(False)
    text = "".join(str(warning.message) for warning in warned if "Traceback of forward call" in str(warning.message))
    return Told(True, _innermost([text.partition("Previous calculation")[0]], program))


def forward_hooks(program: Callable[[], Any]) -> Told:
    """The line that called the first module with a parameter, an input or an output that is not finite.

    It is of the kind of `DebugUnderflowOverflow`, but its hooks are on every module, losses included.
    """

    def look(module: nn.Module, args: Any, result: Any) -> None:
        if not _are_finite([*module.parameters(recurse=False), args, result]):
            raise _Found(_innermost(traceback.format_stack(), program))

    handle = nn.modules.module.register_module_forward_hook(look)
    try:
        program()
    except _Found as found:
        return Told(True, found.line)
    finally:
        handle.remove()
    return Told(False)


def loss_and_parameters(program: Callable[[], Any]) -> Told:
    """Whether a loss, or after a pass a parameter, is not finite. It names no line.

    It is of the kind of PyTorch Lightning's `check_finite_loss` and `detect_nan_parameters`.
    """
    parameters: list[Tensor] = []
    found = False

    def wrapped(plain: Callable[..., Any]) -> Callable[..., Any]:
        def run(roots: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal found
            losses = [roots] if isinstance(roots, Tensor) else list(roots)
            parameters.extend(leaf for _, leaf in leaves_of(graph_from(losses)))
            found |= not _are_finite(losses)
            result = plain(roots, *args, **kwargs)
            found |= not _are_finite(parameters)
            return result

        return run

    with (
        patch.object(torch.autograd, "backward", wrapped(torch.autograd.backward)),
        patch.object(torch.autograd, "grad", wrapped(torch.autograd.grad)),
    ):
        program()
    return Told(found or not _are_finite(parameters))


def debug_mode(program: Callable[[], Any]) -> Told:
    """The line of the first operator whose result is not finite; in backward, the line that made its node."""
    from torch.utils._debug_mode import DebugMode

    brings = (torch.ops.aten.lift_fresh.default, torch.ops.aten.empty.memory_format)  # data, and memory to be filled

    def check(func: Any, types: Any, args: Any, kwargs: Any, result: Any) -> dict[str, bool]:
        return {"bad": func not in brings and not _are_finite(result if result is not None else args[:1])}

    with DebugMode(record_stack_trace=True) as mode, DebugMode.dispatch_hooks(record_hook=check):
        program()
    bad = next((call for call in mode.operators if (call.record or {}).get("bad")), None)
    if bad is None:
        return Told(False)
    return Told(True, _innermost([bad.fwd_stack_trace or bad.stack_trace or ""], program))


def debug_underflow_overflow(program: Callable[[], Any]) -> Told:
    """The line that called the module that it names. It is given each module that the program calls."""
    from transformers.debug_utils import DebugUnderflowOverflow

    running: list[nn.Module] = []
    watched: dict[nn.Module, Any] = {}

    def enter(module: nn.Module, args: Any) -> None:
        if not running and module not in watched:
            watched[module] = DebugUnderflowOverflow(module)
        running.append(module)

    def leave(module: nn.Module, args: Any, result: Any) -> None:
        running.pop()

    hooks = (
        nn.modules.module.register_module_forward_pre_hook(enter),
        nn.modules.module.register_module_forward_hook(leave),
    )
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            program()
    except ValueError as error:
        if "DebugUnderflowOverflow" not in str(error):
            raise
        return Told(True, _innermost(traceback.format_tb(error.__traceback__), program))
    finally:
        for hook in hooks:
            hook.remove()
    return Told(False)


def torchlens(program: Callable[[], Any]) -> Told:
    """The line of the first bad result of the forward pass; if there is none, of the first birth in the first pass."""
    import torchlens as lens  # type: ignore[import-not-found]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of tensors that were made outside of the model, and are not
        found = lens.debug.find_nan(_Model(program), torch.ones(1), capture=lens.options.CaptureOptions(**_LENS))
        if found.found and found.func_name not in ("tensor", "empty"):  # data, and memory to be filled
            file, _, number = (found.source_line or "").rpartition(":")
            return Told(True, int(number) if file == program.__code__.co_filename else None)
        x = torch.ones(1, requires_grad=True)
        capture = lens.options.CaptureOptions(save_grads=True, **_LENS)
        trace = lens.trace(_Model(program, until_backward=True), x, capture=capture)
        trace.log_backward(trace[trace.output_layers[0]].out)
        backward = lens.debug.bisect_nan_backward(trace, bwd=1)
        if backward.birth is None or backward.birth.op_label is None:
            return Told(backward.found or found.found)
        places = trace[backward.birth.op_label].code_context
        lines = [place.line_number for place in places if place.file == program.__code__.co_filename]
        return Told(True, lines[0] if lines else None)


_LENS = {"unwrap_when_done": True}

TOOLS: dict[str, Callable[[Callable[[], Any]], Told]] = {
    "anomaly mode": anomaly_mode,
    "forward hooks": forward_hooks,
    "loss and parameters": loss_and_parameters,
    "DebugMode": debug_mode,
    "DebugUnderflowOverflow": debug_underflow_overflow,
    "torchlens": torchlens,
}
"""By name. One that is not installed is missing in `versions()`."""


def versions() -> dict[str, str]:
    """The version of each tool that is installed; PyTorch's, of its own tools and of those that imitate others."""
    own = {"DebugUnderflowOverflow": "transformers", "torchlens": "torchlens"}
    found = {}
    for name in TOOLS:
        package = own.get(name, "torch")
        if importlib.util.find_spec(package) and (name != "DebugMode" or _has_debug_mode()):
            found[name] = f"{package} {importlib.metadata.version(package)}"
    return found


def _has_debug_mode() -> bool:
    try:
        module = importlib.import_module("torch.utils._debug_mode")
    except ImportError:
        return False
    return hasattr(module.DebugMode, "dispatch_hooks")


class _Stop(Exception):
    def __init__(self, loss: Tensor) -> None:
        super().__init__()
        self.loss = loss


class _Model(nn.Module):
    """A program as a model: its forward runs the program, as a whole or until its first backward pass.

    The layers that the program makes are first filled with what the memory holds, which may be a NaN. A user's model is
    made before it is traced, so that memory is zeros here.
    """

    def __init__(self, program: Callable[[], Any], until_backward: bool = False) -> None:
        super().__init__()
        self.program, self.until_backward = program, until_backward

    def forward(self, x: Tensor) -> Tensor:
        def stop(roots: Any, *args: Any, **kwargs: Any) -> None:
            raise _Stop(roots if isinstance(roots, Tensor) else roots[0])

        with contextlib.ExitStack() as stack:
            if not torch.are_deterministic_algorithms_enabled():
                stack.enter_context(patch.object(torch, "empty", torch.zeros))
            if self.until_backward:
                stack.enter_context(patch.object(torch.autograd, "backward", stop))
            try:
                self.program()
            except _Stop as stopped:
                return stopped.loss.sum() + 0 * x.sum()
        return x + 0


class _Found(Exception):
    def __init__(self, line: int | None) -> None:
        super().__init__(line)
        self.line = line


def _innermost(frames: list[str], program: Callable[[], Any]) -> int | None:
    """The innermost line of a program in a traceback."""
    lines = re.findall(rf'File "{re.escape(program.__code__.co_filename)}", line (\d+)', "".join(frames))
    return int(lines[-1]) if lines else None


def _are_finite(things: Any) -> bool:
    """Whether all tensors that have data are finite."""
    tensors = (thing for thing in tree_leaves(things) if isinstance(thing, Tensor))
    return all(bool(each.isfinite().all()) for each in tensors if not each.is_meta and not each._is_zerotensor())
