"""What a shadow of a pass writes to is put back: code that a checkpoint runs again counts batches, keeps averages."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from .forward import buffers_of, plan_of
from .places import is_recomputed
from .traces import tensors_in


class Undoing(TorchFunctionMode):
    """Remembers what a checkpoint writes to while it is on, and the `.grad` of some tensors.

    Args:
        retaining: tensors inside of a graph that keep their gradients.
    """

    def __init__(self, retaining: Iterable[Tensor]) -> None:
        super().__init__()
        self.kept: dict[int, tuple[Tensor, Tensor]] = {}
        with torch._C.DisableTorchFunction():
            self.grads = [(tensor, tensor.grad) for tensor in retaining]

    def on(self) -> AbstractContextManager[Any]:
        """Within, the code of a checkpoint is watched."""
        return nullcontext() if self in _get_current_function_mode_stack() else self

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunction():  # other modes see nothing of a shadow
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
