"""Hooks on nodes that may have hooks already: ours come first, and the others get plain tensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from .cotangent import as_in_pytorch


class PassHook(partial):  # type: ignore[type-arg]
    """A hook of a pass."""


class _GetsPlain:
    """Another's hook, which C++ hands what the derivative got; passes that share the node share this."""

    def __init__(self, hook: Callable[..., Any]) -> None:
        self.hook = hook
        self.passes = 0

    def __call__(self, *things: Any) -> Any:
        return self.hook(*map(as_in_pytorch, things))


class _Kept:
    """Gives a hook its place back, when no pass needs it otherwise."""

    def __init__(self, hooks: dict[int, Any], number: int, kept: _GetsPlain) -> None:
        self.hooks, self.number, self.kept = hooks, number, kept
        kept.passes += 1

    def remove(self) -> None:
        self.kept.passes -= 1
        if not self.kept.passes and self.hooks.get(self.number) is self.kept:
            self.hooks[self.number] = self.kept.hook


def put_first(handle: Any) -> list[Any]:
    """Have a hook of ours run before those of others.

    Args:
        handle: what registering it gave.

    Returns:
        The handles to remove when the pass is over.
    """
    hooks = handle.hooks_dict_ref()
    handles = [handle]
    if hooks is None or len(hooks) == 1:
        return handles
    for number, hook in list(hooks.items()):
        if not isinstance(hook, PassHook):
            kept = hook if isinstance(hook, _GetsPlain) else _GetsPlain(hook)
            del hooks[number]  # C++ goes through them in the order of insertion
            hooks[number] = kept
            handles.append(_Kept(hooks, number, kept))
    return handles
