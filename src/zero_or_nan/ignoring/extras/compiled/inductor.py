"""A pass of our own in inductor, behind those that the user has set. Imported only by who asks for one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._inductor.custom_graph_pass import CustomGraphPass


class Passes(CustomGraphPass):
    """The passes that were set `before` (None, a pass or several), and our `own`, which depends on a `fingerprint`.

    PyTorch 2.8 puts the object itself into the keys of its caches, later releases what `uuid` returns. So it is made of
    what can be pickled.
    """

    def __init__(self, before: Any, own: Callable[[Any], None], fingerprint: str) -> None:
        self.before = () if before is None else tuple(before) if isinstance(before, (list, tuple)) else (before,)
        self.own = own
        self.fingerprint = fingerprint

    def __call__(self, graph: Any) -> None:
        for each in (*self.before, self.own):
            each(graph)

    def uuid(self) -> Any:
        names = [each.uuid() if isinstance(each, CustomGraphPass) else None for each in self.before]
        return None if None in names else (*names, self.fingerprint)
