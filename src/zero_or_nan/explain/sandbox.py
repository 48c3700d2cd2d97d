"""Where an extra backward pass runs, so that the user's program does not notice it.

The user's hooks do not run in it. What it writes into buffers and into the `.grad` of tensors inside of the graph is
put back: code that a checkpoint runs again counts batches, and keeps averages.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from .findings import Scope
from .functions import buffers_of, plan_of
from .places import is_recomputed
from .tensors import tensors_in

Listener = Callable[[Any], None]


class Sandbox:
    """The sandbox of one watch."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._retaining: dict[int, weakref.ref[Tensor]] = {}
        self._undoing: _Undoing | None = None

    @property
    def is_entered(self) -> bool:
        """Whether an extra pass is running."""
        return self._undoing is not None

    @contextmanager
    def entered(self, recomputes: bool) -> Iterator[Callable[[Listener], None]]:
        """While entered, passes are extra passes. Gives a function that takes listeners.

        A listener is called with the roots of each pass, also of those that a checkpoint starts inside of another.

        Args:
            recomputes: whether a checkpoint may run code again. If so, each function that is called is watched, also
                those that `ignoring` calls, which takes as long as `ignoring` itself.
        """
        outer = self._undoing
        retaining = [tensor for tensor in (known() for known in self._retaining.values()) if tensor is not None]
        self._undoing = undoing = _Undoing(retaining, recomputes)
        try:
            yield undoing.listeners.append
        finally:
            self._undoing = outer
            undoing.undo()

    def run(self, run: Callable[..., Any], roots: Any, *args: Any, **kwargs: Any) -> Any:
        """Run PyTorch's engine for an extra pass."""
        assert self._undoing is not None
        for listener in self._undoing.listeners:
            listener(roots)
        with self._undoing.on():
            return run(roots, *args, **kwargs)

    def prepared(self, func: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The arguments with which to call `Tensor.register_hook` or `Tensor.retain_grad`."""
        if func is Tensor.retain_grad:
            self.retains(*args)
        elif len(args) == 2:
            return (args[0], self.silenced(args[1])), kwargs
        else:
            return args, {name: self.silenced(hook) for name, hook in kwargs.items()}
        return args, kwargs

    def retains(self, tensor: Tensor) -> None:
        """Note that a tensor inside of a graph keeps its gradient."""
        at = id(tensor)
        self._retaining[at] = weakref.ref(tensor, lambda _: self._retaining.pop(at, None))

    def silenced(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        """A hook of the user's that does not run in an extra pass. Hooks of this package always run."""
        is_ours = (getattr(hook, "__module__", None) or "").startswith(f"{__package__}.")
        if not self._scope.is_here() or self.is_entered or is_ours:
            return hook

        def run(*args: Any, **kwargs: Any) -> Any:
            return None if self.is_entered else hook(*args, **kwargs)

        with contextlib.suppress(AttributeError, TypeError):  # a callable of any kind
            functools.update_wrapper(run, hook)
        return run


class _Undoing(TorchFunctionMode):
    """While it is on, remembers what a checkpoint writes to.

    Args:
        retaining: tensors inside of a graph that keep their gradients.
        recomputes: whether a checkpoint may run code again.
    """

    def __init__(self, retaining: Iterable[Tensor], recomputes: bool) -> None:
        super().__init__()
        self.recomputes = recomputes
        self.listeners: list[Listener] = []
        self.kept: dict[int, tuple[Tensor, Tensor]] = {}
        with torch._C.DisableTorchFunction():
            self.grads = [(tensor, tensor.grad) for tensor in retaining]

    @contextmanager
    def on(self) -> Iterator[None]:
        """While entered, the code of a checkpoint is watched. A pass in a pass must not push this mode twice."""
        if not self.recomputes:
            yield
            return
        with torch._C._EnableTorchFunction(), nullcontext() if self in _get_current_function_mode_stack() else self:
            yield

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunction():  # the user's modes must not see an extra pass
            plan = plan_of(func)
            buffers = buffers_of(func, args, kwargs)
            if buffers and is_recomputed():
                self._keep(buffers)
            elif plan.in_place and is_recomputed():
                self._keep(args[:1])
            return func(*args, **kwargs)

    def _keep(self, tensors: Any) -> None:
        for tensor in tensors_in(tensors):
            if tensor.grad_fn is None and id(tensor) not in self.kept:
                self.kept[id(tensor)] = tensor, tensor.detach().clone()

    def undo(self) -> None:
        """Put everything back."""
        with torch.no_grad(), torch._C.DisableTorchFunction():
            for tensor, value in self.kept.values():
                with _unsafe_preserve_version_counter(tensor):
                    tensor.copy_(value)
            for tensor, grad in self.grads:
                tensor.grad = grad
