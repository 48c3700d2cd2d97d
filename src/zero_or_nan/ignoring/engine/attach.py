"""How a pass attaches to PyTorch's engine: which nodes run, hooks on them, the threads at work, and no compiler.

- If only some gradients are asked for, the engine says which nodes it runs (`needed_from`).
- A node may have the user's hooks, too. A pass's hooks run first, and the user's hooks get plain tensors (`put_first`).
- PyTorch's engine tells the other threads that run nodes of the pass which pass they work for (`current`). It does so
  for an object that is stashed in the thread's local state. When a thread ends, it frees the object, which needs
  Python: if the program ends at the same moment, it is aborted. So an object is stashed only if it is needed, and taken
  out again, which PyTorch can do from 2.13 on. An object that is stashed during the engine's run is removed by the
  engine.
- What a pass does depends on the numbers, so Dynamo can't trace it (`not_compiled`).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from types import CodeType
from typing import Any, ParamSpec, TypeVar

import torch
import torch._C._dynamo.eval_frame
import torch._compile
from torch import Tensor

from ...functions.graph import DEEP_GRAPHS, AccumulateGrad, Graph, engine, engine_run, graph_from, held_from, leaves_of
from ...masks.cotangent import as_in_pytorch


class PassHook(partial):  # type: ignore[type-arg]
    """A hook of a pass. The type distinguishes it from the user's hooks."""


class _GetsPlain:
    """A user's hook, called with plain tensors in place of cotangents. Passes that share a node share this wrapper."""

    def __init__(self, hooks: dict[int, Any], number: int) -> None:
        self.hooks, self.number, self.hook = hooks, number, hooks[number]
        self.passes = 0

    def __call__(self, *gradients: Any) -> Any:
        return self.hook(*map(as_in_pytorch, gradients))

    def remove(self) -> None:
        """Put the hook back in place of this wrapper, when the last pass that needs the wrapper ends."""
        self.passes -= 1
        if not self.passes and self.hooks.get(self.number) is self:
            self.hooks[self.number] = self.hook


def put_first(handle: Any) -> list[Any]:
    """Make a hook of a pass run before the user's hooks, so that these get its results.

    Args:
        handle: the handle that registering the hook returned.

    Returns:
        The handles to remove when the pass is over.
    """
    hooks = handle.hooks_dict_ref()
    handles = [handle]
    if hooks is None or len(hooks) == 1:
        return handles
    for number, hook in list(hooks.items()):
        if not isinstance(hook, PassHook):
            wrapper = hook if isinstance(hook, _GetsPlain) else _GetsPlain(hooks, number)
            wrapper.passes += 1
            del hooks[number]  # C++ calls the hooks in the order of insertion
            hooks[number] = wrapper
            handles.append(wrapper)
    return handles


_KEY = "ignoring.pass"
_stash = torch._C._stash_obj_in_tls
_take_out = getattr(torch._C, "_remove_obj_from_tls", None)
_here = threading.local()


class _Nobody:
    """The object that is stashed when no pass is running."""


_NOBODY = _Nobody()


def current() -> Any:
    """The pass that this thread works for; None outside of a pass."""
    if engine_run() != -1 and torch._C._is_key_in_tls(_KEY):
        found = torch._C._get_obj_in_tls(_KEY)
        if not isinstance(found, _Nobody):
            return found
    return getattr(_here, "running", None)


def set_current(running: Any) -> None:
    """Set the pass that this thread works for, or None."""
    inside = engine_run() != -1
    if not inside:
        _here.running = running
    if running is None and _take_out is not None:
        if torch._C._is_key_in_tls(_KEY):
            _take_out(_KEY)
    elif inside or _other_devices():
        _keep_in_tls(_KEY, _NOBODY if running is None else running)  # older releases can't take an object out


_HOME = "zero_or_nan.home"


def home() -> int:
    """The thread that this thread works for. For each GPU, PyTorch has a thread that computes the passes of others."""
    if engine_run() != -1 and torch._C._is_key_in_tls(_HOME):
        return torch._C._get_obj_in_tls(_HOME)  # type: ignore[no-any-return]
    return threading.get_ident()


def lead_home() -> None:
    """Let `home` find this thread, in the threads that compute a pass that begins here."""
    if engine_run() == -1 and _other_devices() and not torch._C._is_key_in_tls(_HOME):
        _keep_in_tls(_HOME, threading.get_ident())


def _keep_in_tls(key: str, value: object) -> None:
    """Stash an object in what PyTorch's threads take over from the thread that they work for."""
    if _takes_too_much():  # add the reference that PyTorch will drop
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))
    _stash(key, value)


def gpu_in_use() -> Any:
    """The module of PyTorch for the GPUs that this process computes on, such as `torch.cuda`; None if it uses none.

    Asking whether there is a GPU would initialize CUDA, and after that the process can't fork.
    """
    kinds: tuple[Any, ...] = (torch.cuda, torch.xpu)
    return next((kind for kind in kinds if kind.is_initialized()), None)


def _other_devices() -> bool:
    """True if nodes may run in other threads. The engine has a thread for each device except the CPU."""
    is_in_use = gpu_in_use() is not None
    if is_in_use or torch.backends.cuda.is_built():  # type: ignore[no-untyped-call]
        return is_in_use
    try:
        return torch.accelerator.current_accelerator() is not None
    except RuntimeError:  # 2.6 raises if there is none
        return False


def is_captured() -> bool:
    """True while a CUDA graph is captured: kernels are noted and do not run, so there are no numbers to read."""
    return gpu_in_use() is torch.cuda and torch.cuda.is_current_stream_capturing()


@functools.cache
def _takes_too_much() -> bool:
    """True if PyTorch drops a reference to the stashed object that it never took, as 2.6 does."""
    probe = _Nobody()
    before = sys.getrefcount(probe)
    _stash(_KEY, probe)
    taken = sys.getrefcount(probe) > before
    if not taken:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(probe))
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(_NOBODY))
    _stash(_KEY, _NOBODY)
    return not taken


P = ParamSpec("P")
R = TypeVar("R")

set_compiler: Callable[[Any], Any] = torch._C._dynamo.eval_frame.set_eval_frame
"""Set what Dynamo calls for each new frame, None to switch it off, and return what it was."""


def not_compiled(function: Callable[P, R]) -> Callable[P, R]:
    """The function, which runs uncompiled also if the code that calls it is compiled."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        if not _is_at_work():
            return function(*args, **kwargs)
        before = set_compiler(None)  # as `torch.compiler.disable` does, which `explain` would take for the user's
        try:
            return function(*args, **kwargs)
        finally:
            set_compiler(before)

    # PyTorch sets this on disabled functions, too: Dynamo does not trace `run` itself.
    run._torchdynamo_disable = True  # type: ignore[attr-defined]
    _skip(run.__code__)  # type: ignore[attr-defined]
    return run


F = TypeVar("F", bound=Callable[..., Any])


def never_traced(function: F) -> F:
    """The function, which the compiler does not try to compile if it is called while the compiler is on."""
    _skip(function.__code__)
    return function


@functools.cache  # all functions of `not_compiled` share the code of `run`
def _skip(code: CodeType) -> None:
    """Keep Dynamo from tracing a call that begins in uncompiled code, for example in a hook of an optimizer."""
    dynamo: Any = torch._C._dynamo.eval_frame
    with contextlib.suppress(AttributeError):  # its functions for this differ by release
        if hasattr(dynamo, "skip_code"):
            dynamo.skip_code(code)
        else:
            actions = dynamo._FrameAction
            dynamo.set_code_exec_strategy(code, dynamo._FrameExecStrategy(actions.SKIP, actions.DEFAULT))


def _is_at_work() -> bool:
    """True if Dynamo may trace this code. Only then is it kept out, which costs more than a small backward pass."""
    if "torch._dynamo" not in sys.modules:
        return False
    return torch.compiler.is_compiling() or _callback is None or _callback() is not None  # it can't trace this call


for each in (_is_at_work, home):
    _skip(each.__code__)

_callback: Callable[[], Any] | None = getattr(torch._C._dynamo.eval_frame, "get_eval_frame_callback", None)
if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 8):
    # PyTorch 2.6 and 2.7 forget to count the reference that they return: each call takes one away, mostly from None.
    # After some thousand calls Python frees an object that is in use, and crashes.
    _callback = None


def compiled_autograd_aside() -> AbstractContextManager[None]:
    """A context in which PyTorch's engine runs backward even if compiled autograd is enabled."""
    module = sys.modules.get("torch._dynamo.compiled_autograd")
    if module is None or not module.compiled_autograd_enabled:
        return contextlib.nullcontext()
    aside: AbstractContextManager[None] = module._disable()
    return aside


_runs: Callable[[Any], bool] = torch._C._will_engine_execute_node


class _Seen(Exception):
    """Ends the run that asks the engine."""


class _Asking(torch.autograd.Function):
    """The node from which the run starts."""

    @staticmethod
    def forward(ctx: Any, look: Callable[[], None], *roots: Tensor) -> Tensor:
        ctx.look = look
        return torch.empty((), device="cpu")

    @staticmethod
    def backward(ctx: Any, _: Any) -> Any:
        ctx.look()
        raise _Seen


def needed_from(roots: Sequence[Any], inputs: Iterable[Any]) -> Graph:
    """The nodes that backward from the roots runs for the gradients of the inputs alone.

    The engine decides this at the start of a run, without walking through what is behind the inputs. So we ask the
    engine: we start a run from a node of our own ahead of the roots, look at the graph from there, and end the run by
    an exception. No node of the user's graph runs, and none of the user's hooks. If all leaves of the graph are inputs,
    the engine need not be asked.

    Deep graphs are held until nothing else holds them. If the engine can't be asked, these are all nodes that backward
    can reach: if a root is a graph edge, inside of a transform of `torch.func`, and while PyTorch detects anomalies,
    because it would report our exception as one.
    """
    inputs = tuple(inputs)
    if inputs and all(isinstance(each, Tensor) and each.is_leaf for each in inputs):
        graph, known = held_from(roots), set(map(id, inputs))
        if all(id(leaf) in known for _, leaf in leaves_of(graph)):
            return graph
    is_usual = all(isinstance(root, Tensor) and root.requires_grad for root in roots)
    if not inputs or not is_usual or torch.is_anomaly_enabled():
        return held_from(roots)
    DEEP_GRAPHS.sweep()
    graph = {}
    try:
        with torch.inference_mode(False), compiled_autograd_aside():  # the first lets PyTorch record, too
            asking = _Asking.apply(lambda: graph.update(graph_from(roots, _is_run)), *roots)  # type: ignore[no-untyped-call]
            engine.run_backward((asking,), (asking.detach(),), True, False, inputs, True, False)
    except _Seen:
        DEEP_GRAPHS.hold(graph)
        return graph
    except Exception:  # inside of `torch.func`, or the arguments are wrong, which the user's call will raise again
        return held_from(roots)
    return graph  # no input can be reached


def _is_run(node: Any) -> bool:
    """True if the engine runs a node. The engine can't be asked about leaves."""
    return type(node) is AccumulateGrad or _runs(node)
