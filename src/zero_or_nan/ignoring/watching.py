"""Dispatch modes: they see each operator that is called while a derivative runs, with or without a cotangent."""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that does not import Dynamo. Newer releases of PyTorch wrap other modes, and the wrapper imports it."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class Watching(Mode):  # type: ignore[no-untyped-call]
    """A mode that lasts from one hook of a node to another. If the derivative in between fails, the engine ends it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def start(self) -> None:
        torch._C._push_on_torch_dispatch_stack(self)

    def stop(self) -> None:
        torch._C._pop_torch_dispatch_stack(None)
