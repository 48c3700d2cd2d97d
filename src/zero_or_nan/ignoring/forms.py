"""The forms of tensors: where a tensor has its numbers, and so, where a mask belongs.

A dense tensor has them in its own memory. A jagged tensor has them in a dense tensor (`jagged`), a DTensor in several
processes (`distributed`). All other files ask a tensor's form, and need not know which forms there are.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .watching import Watching


class Form:
    """The form of dense tensors, and of all others for which there is no other form. Those override what differs."""

    can_be_recorded = True
    """Whether a gradient of this form can be differentiated again."""

    is_shared = False
    """Whether several processes have parts of such a tensor, so that all of them have to decide alike."""

    def has(self, tensor: Any) -> bool:
        """True if a tensor has this form."""
        return True

    def values(self, tensor: Any) -> Any:
        """The tensor to whose elements a mask belongs."""
        return tensor

    def with_values(self, tensor: Any, values: Any) -> Any:
        """The tensor with other values."""
        return values

    def here(self, tensor: Any) -> Any:
        """The values that this process has; None if it has only a term of each."""
        return self.values(tensor)

    def not_zero(self, tensor: Any) -> Tensor:
        """A mask of the values that are not 0, NaN included."""
        return self.values(tensor) != 0  # type: ignore[no-any-return]

    def reader(self, node: Any) -> Any:
        """A node with a cotangent of this form, as a formula of the library reads its saved tensors."""
        return node

    def watching(self) -> Watching | None:
        """The mode in which a derivative runs if it gets a cotangent of this form; None if it needs none."""
        return None


DENSE = Form()

_OTHERS: list[Any] = []


def register(form: type) -> type:
    """Add a form. It has one more function, `cotangent(value, mask, step)`: what a derivative gets in its place.

    A form that is shared also has `prefer_exact(exact, masked)`: plain PyTorch's result where it is finite.
    """
    _OTHERS.append(form())
    return form


def form_of(thing: Any) -> Any:
    """The form of a tensor; for any other object `DENSE`."""
    if type(thing) is not Tensor and isinstance(thing, Tensor):
        for form in _OTHERS:
            if form.has(thing):
                return form
    return DENSE


def is_dense(thing: Any) -> bool:
    """True if there is no other form for a tensor."""
    return form_of(thing) is DENSE


def values_of(thing: Any) -> Any:
    """The tensor to whose elements a tensor's mask belongs; any other object unchanged."""
    return form_of(thing).values(thing)


def with_values(tensor: Any, values: Any) -> Any:
    """A tensor of the same form, with other values."""
    return form_of(tensor).with_values(tensor, values)


def not_zero(tensor: Any) -> Tensor:
    """A mask of a tensor's values that are not 0, NaN included."""
    found: Tensor = form_of(tensor).not_zero(tensor)
    return found
