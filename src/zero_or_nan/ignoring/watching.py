"""What looks on while a derivative runs: at the operators that it calls, whether they get a cotangent or not."""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Watching(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode between two hooks of a node. Where the derivative fails in between, the engine itself ends it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def start(self) -> None:
        torch._C._push_on_torch_dispatch_stack(self)

    def stop(self) -> None:
        torch._C._pop_torch_dispatch_stack(None)
