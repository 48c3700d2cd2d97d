"""Dispatch modes: they see each operator that is called while a derivative runs, with or without a cotangent.

The functions that switch modes on and off in this thread are here, too. `Comparisons` watches what a derivative
compares, because a comparison with NaN selects nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from .cotangent import unwrap
from .mask import Mask
from .numbers import form_of

push_mode: Callable[[TorchDispatchMode], None] = torch._C._push_on_torch_dispatch_stack
pop_mode: Callable[[None], Any] = torch._C._pop_torch_dispatch_stack
"""Put a dispatch mode above all others, and take the uppermost one away."""

modes_on: Callable[[], int] = torch._C._len_torch_dispatch_stack
"""How many dispatch modes are on in this thread."""

operators_unseen = torch._C._DisableTorchDispatch
"""A context in which neither a subclass of Tensor nor a dispatch mode sees which operators run. It begins when made."""

functions_unseen = torch._C.DisableTorchFunction
"""A context in which neither a subclass of Tensor nor a mode for functions sees which functions are called."""

is_profiled: Callable[[], bool] = torch.autograd._profiler_enabled  # type: ignore[attr-defined]
"""True if one of PyTorch's profilers records."""

set_recording = torch._C._set_grad_enabled
"""Switch the recording of the graph on or off. `torch.set_grad_enabled` takes several times as long."""


_FLAGS = [name for name in vars(_python_dispatch) if name.startswith("_is_in_")]


class Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that does not import Dynamo. Newer releases of PyTorch wrap other modes, and the wrapper imports it.

    PyTorch notes in flags of the whole process that a mode is on, and each mode puts back what it found. If two
    threads leave their modes in the order in which they entered them, the flags stay. Before 2.12, `torch.compile`
    then compiles nothing until the process ends. Therefore the flags are put back here, too.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)  # type: ignore[no-untyped-call]
        if _python_dispatch.is_in_torch_dispatch_mode() and not modes_on():
            for flag in _FLAGS:
                setattr(_python_dispatch, flag, False)


class Watching(Mode):  # type: ignore[no-untyped-call]
    """A mode that lasts from one hook of a node to another. If the derivative in between fails, the engine ends it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def start(self) -> None:
        push_mode(self)

    def stop(self) -> None:
        pop_mode(None)


class Comparisons(Watching):  # type: ignore[no-untyped-call]
    """Notes the elements at which a derivative compares a NaN.

    Args:
        first_alone: whether only the first argument of a comparison is checked for NaN.
    """

    COMPARING = frozenset(getattr(torch.ops.aten, name) for name in ("eq", "ge", "gt", "le", "lt"))
    JOINING = frozenset(getattr(torch.ops.aten, name) for name in ("logical_and", "logical_or", "logical_and_"))

    def __init__(self, first_alone: bool) -> None:
        super().__init__()
        self.places = slice(1) if first_alone else slice(2)
        self.unordered: dict[int, tuple[Tensor, Tensor]] = {}
        """By id, each result of a comparison, and where it compared a NaN. Keeping the result keeps its id."""

    def __torch_dispatch__(
        self, op: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = op(*args, **(kwargs or {}))
        if op.overloadpacket in self.COMPARING:
            for operand in args[:2] if op.overloadpacket is torch.ops.aten.eq else args[self.places]:
                self._compared(result, operand)
        elif op.overloadpacket in self.JOINING:
            for condition in args:
                self._note(result, self.where_unordered(condition))
        return result

    def where_unordered(self, condition: Any) -> Mask:
        """Where a condition is False because it compared a NaN; None if it compared none."""
        found = self.unordered.get(id(condition))
        return None if found is None else found[1]

    def _compared(self, result: Tensor, operand: Any) -> None:
        """Note where an operand of a comparison is NaN."""
        if isinstance(operand, Tensor) and operand.is_floating_point() and not form_of(operand).is_shared:
            nan = unwrap(operand).isnan()
            if bool(nan.any()):
                self._note(result, nan.expand(result.shape))

    def _note(self, result: Tensor, unordered: Mask) -> None:
        if unordered is not None:
            before = self.where_unordered(result)
            self.unordered[id(result)] = result, unordered if before is None else before | unordered
