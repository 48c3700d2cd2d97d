"""The user's names of modules, parameters and inputs. They are looked up only if there is something to report."""

from __future__ import annotations

import gc
import inspect
import itertools
import sys
import weakref
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any, TypeVar

from torch import Tensor, nn

T = TypeVar("T")

WRAPPERS = ("module", "_orig_mod", "_fsdp_wrapped_module")
"""Names that DistributedDataParallel, the compiler and FSDP put before those of the user."""


def all_modules() -> list[nn.Module]:
    """All modules that exist now.

    No list of all objects may outlive the call that makes it. The list would hold tensors that otherwise only C++
    holds, and PyTorch before 2.10 warns the thread that lets go of such a tensor.
    """
    kinds = set(map(type, itertools.chain.from_iterable(map(gc.get_objects, (None,)))))
    of_modules = {kind for kind in kinds if issubclass(kind, nn.Module)}
    return [thing for thing in gc.get_referrers(*of_modules) if type(thing) in of_modules]


class Names:
    """The names that can be found now.

    Modules that were called in the block, or that are variables, are found at once. A walk over all objects finds the
    others. The walk takes as long as many passes of a small model, so it happens at most once, and only if something
    is looked up that is in no module that was found. Whether other modules hold those that were found is a question
    for `Later`.

    Args:
        frame: the user's frame, whose variables give names to tensors.
        called: modules that were called in the block.

    Attributes:
        variables: by the id of a tensor, the name of the variable that it is; empty if it is none.
        ends: modules that no other module holds, as far as is known.
    """

    def __init__(self, frame: FrameType | None = None, called: Iterable[nn.Module] = ()) -> None:
        self.frame = frame
        self.variables: dict[int, str] = {}
        self.ends: dict[int, nn.Module] = {}
        self._called = list(called)
        self._forget()
        self._looked = self._looked_everywhere = False

    def _forget(self) -> None:
        self._inside: dict[int, list[tuple[nn.Module, str]]] = {}
        self._holds: dict[int, list[tuple[nn.Module, str]]] = {}
        self._buffers: set[int] = set()

    def _look(self) -> None:
        """Find the modules that were called, and those that are variables."""
        if self._looked:
            return
        self._looked = True
        found: dict[int, nn.Module] = {}
        left = [*self._called]
        frame = self.frame
        while frame is not None:
            left += of_variables(frame, lambda values: [each for _, each in values if isinstance(each, nn.Module)])
            frame = frame.f_back
        left.reverse()
        while left:
            module = left.pop()
            if id(module) not in found:
                found[id(module)] = module
                left += [child for child in module.__dict__.get("_modules", {}).values() if child is not None][::-1]
        self._add(found.values())

    def look_everywhere(self) -> None:
        """Find all modules."""
        if not self._looked_everywhere:
            self._looked = self._looked_everywhere = True
            self._forget()
            self._add(all_modules())

    def _add(self, modules: Iterable[nn.Module]) -> None:
        for module in modules:
            for name, child in module.__dict__.get("_modules", {}).items():
                if child is not None:
                    self._inside.setdefault(id(child), []).append((module, name))
            buffers = module.__dict__.get("_buffers", {})
            self._buffers.update(map(id, buffers.values()))
            for name, tensor in (*module.__dict__.get("_parameters", {}).items(), *buffers.items()):
                if tensor is not None:
                    self._holds.setdefault(id(tensor), []).append((module, name))

    def _find_end(self, module: nn.Module) -> None:
        """Find the outermost module around a module, among those that are known."""
        seen = set()
        while id(module) in self._inside and id(module) not in seen:
            seen.add(id(module))  # modules may hold each other
            module, _ = self._inside[id(module)][0]
        if not self._looked_everywhere:
            self.ends[id(module)] = module

    def of_module(self, module: nn.Module | None, outer: nn.Module | None = None) -> str:
        """The path of a module from the outermost module that holds it; empty if no module does.

        Args:
            module: the module.
            outer: the outermost module whose call led to its own. It holds the module, unless it is gone by now.
        """
        if module is None:
            return ""
        self._look()
        self._find_end(module if outer is None else outer)
        parts: list[str] = []
        seen = set()
        if outer is not None and outer is not module:
            parts = [name for name, inner in outer.named_modules() if inner is module][:1]
            module = outer
        while id(module) in self._inside and id(module) not in seen:
            seen.add(id(module))
            module, name = self._inside[id(module)][0]
            parts.append(name)
        names = [name for part in reversed(parts) for name in part.split(".")]
        return ".".join(name for name in names if name not in WRAPPERS)

    def of_target(self, target: Tensor | str) -> str:
        """A name for what was reached."""
        return target if isinstance(target, str) else self.of_tensor(target) or "a tensor"

    def role_of(self, tensor: Tensor) -> str:
        """What a tensor is to a module: "a parameter" or "a buffer"; empty if it is neither."""
        self._find_holder(tensor)
        if id(tensor) in self._buffers:
            return "a buffer"
        return "a parameter" if id(tensor) in self._holds or isinstance(tensor, nn.Parameter) else ""

    def of_tensor(self, tensor: Tensor) -> str:
        """The name of a tensor as a parameter, a buffer or a variable; empty if it has none."""
        self._find_holder(tensor)
        if id(tensor) in self._holds:
            module, name = self._holds[id(tensor)][0]
            path = self.of_module(module)
            return f"{path}.{name}" if path else name
        return self._variable(tensor)

    def _find_holder(self, tensor: Tensor) -> None:
        """Find the modules that hold a tensor. What is a variable, and no parameter, is taken to be in no other."""
        self._look()
        if id(tensor) not in self._holds and (isinstance(tensor, nn.Parameter) or not self._variable(tensor)):
            self.look_everywhere()

    def _variable(self, tensor: Tensor) -> str:
        if id(tensor) not in self.variables:
            frame, found = self.frame, list[str]()
            while frame is not None and not found:
                found = of_variables(frame, lambda values: [name for name, value in values if value is tensor])
                frame = frame.f_back
            self.variables[id(tensor)] = found[0] if found else ""
        return self.variables[id(tensor)]


class Later:
    """Looks names up again when somebody reads them, if other modules hold those that were found at first.

    To find out takes a walk over all objects, as long as many passes of a small model. Until then, this keeps nothing
    of the user's alive.
    """

    def __init__(self) -> None:
        # No WeakSet: its callbacks crash Python 3.11 if the garbage collector frees a set and its modules together.
        self._ends: dict[int, weakref.ref[nn.Module]] = {}
        self._variables: dict[int, str] = {}

    def add(self, names: Names) -> None:
        """Take over what was found, and what was not."""
        self._ends.update((key, weakref.ref(module)) for key, module in names.ends.items())
        self._variables.update(names.variables)

    def names(self) -> Names | None:
        """The names among all modules; None if they are the same as at first."""
        ends = [module for known in self._ends.values() if (module := known()) is not None]
        self._ends.clear()
        if not ends or not any(map(_holds_modules, gc.get_referrers(*ends))):  # a walk over all objects, too, but in C
            return None
        names = Names()
        names.variables = self._variables
        names.look_everywhere()
        return names


def _holds_modules(thing: Any) -> bool:
    """Whether an object looks like the dict in which a module has its children."""
    return isinstance(thing, dict) and all(value is None or isinstance(value, nn.Module) for value in thing.values())


def of_variables(frame: FrameType, choose: Callable[[list[tuple[str, Any]]], list[T]]) -> list[T]:
    """What is chosen of the variables of a frame, as pairs of name and value."""
    variables = frame.f_locals
    found = choose([(name, value) for name, value in list(variables.items()) if not name.startswith("_")])
    # Up to Python 3.12 a function's frame keeps this copy of its variables, and with it all tensors, until the function
    # returns. So the copy is cleared, unless the user has it from `locals()`: then it has more references than those of
    # the frame, this function and the call of `getrefcount`.
    is_copy = type(variables) is dict and frame.f_code.co_flags & inspect.CO_OPTIMIZED
    if is_copy and sys.getrefcount(variables) == 3:
        variables.clear()
    return found
