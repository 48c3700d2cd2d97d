"""Hooks on nodes that may have the user's hooks, too. A pass's hooks run first; the user's hooks get plain tensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from .cotangent import as_in_pytorch


class PassHook(partial):  # type: ignore[type-arg]
    """A hook of a pass. The type distinguishes it from the user's hooks."""


class _GetsPlain:
    """A user's hook, called with plain tensors in place of cotangents. Passes that share a node share this wrapper."""

    def __init__(self, hook: Callable[..., Any]) -> None:
        self.hook = hook
        self.passes = 0

    def __call__(self, *gradients: Any) -> Any:
        return self.hook(*map(as_in_pytorch, gradients))


class _Restore:
    """Puts a user's hook back in place of its wrapper, when the last pass that needs the wrapper ends."""

    def __init__(self, hooks: dict[int, Any], number: int, wrapper: _GetsPlain) -> None:
        self.hooks, self.number, self.wrapper = hooks, number, wrapper
        wrapper.passes += 1

    def remove(self) -> None:
        self.wrapper.passes -= 1
        if not self.wrapper.passes and self.hooks.get(self.number) is self.wrapper:
            self.hooks[self.number] = self.wrapper.hook


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
            wrapper = hook if isinstance(hook, _GetsPlain) else _GetsPlain(hook)
            del hooks[number]  # C++ calls the hooks in the order of insertion
            hooks[number] = wrapper
            handles.append(_Restore(hooks, number, wrapper))
    return handles
