"""The user's names of modules, parameters and inputs. They are looked up only if there is something to report."""

from __future__ import annotations

import gc
import inspect
import itertools
import sys
from collections.abc import Mapping, Sequence
from types import FrameType

from torch import Tensor, nn

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

    Args:
        frame: the user's frame, whose variables give names to tensors.
    """

    def __init__(self, frame: FrameType | None = None) -> None:
        self.frame = frame
        self._inside: dict[int, list[tuple[nn.Module, str]]] = {}
        self._holds: dict[int, list[tuple[nn.Module, str]]] = {}
        self._buffers: set[int] = set()
        self._looked = False

    def _look(self) -> None:
        """Find all modules. This takes as long as a pass of a small model, so it happens at most once."""
        if self._looked:
            return
        self._looked = True
        for module in all_modules():
            for name, child in module.__dict__.get("_modules", {}).items():
                if child is not None:
                    self._inside.setdefault(id(child), []).append((module, name))
            buffers = module.__dict__.get("_buffers", {})
            self._buffers.update(map(id, buffers.values()))
            for name, tensor in (*module.__dict__.get("_parameters", {}).items(), *buffers.items()):
                if tensor is not None:
                    self._holds.setdefault(id(tensor), []).append((module, name))

    def of_module(self, module: nn.Module | None, around: Mapping[nn.Module, Sequence[nn.Module]] | None = None) -> str:
        """The path of a module from the outermost module that holds it; empty if no module does.

        Args:
            module: the module.
            around: by module, the modules whose calls led to its own. They hold it, unless they are gone by now.
        """
        if module is None:
            return ""
        self._look()
        parts: list[str] = []
        seen = set()
        outer = next(iter((around or {}).get(module, ())), None)
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
        self._look()
        if id(tensor) in self._buffers:
            return "a buffer"
        return "a parameter" if id(tensor) in self._holds or isinstance(tensor, nn.Parameter) else ""

    def of_tensor(self, tensor: Tensor) -> str:
        """The name of a tensor as a parameter, a buffer or a variable; empty if it has none."""
        self._look()
        if id(tensor) in self._holds:
            module, name = self._holds[id(tensor)][0]
            path = self.of_module(module)
            return f"{path}.{name}" if path else name
        frame = self.frame
        while frame is not None:
            found = _variable(tensor, frame)
            if found:
                return found
            frame = frame.f_back
        return ""


def _variable(tensor: Tensor, frame: FrameType) -> str:
    variables = frame.f_locals
    names = (name for name, value in list(variables.items()) if value is tensor and not name.startswith("_"))
    found = next(names, "")
    # Up to Python 3.12 a function's frame keeps this copy of its variables, and with it all tensors, until the function
    # returns. So the copy is cleared, unless the user has it from `locals()`: then it has more references than those of
    # the frame, this function and the call of `getrefcount`.
    is_copy = type(variables) is dict and frame.f_code.co_flags & inspect.CO_OPTIMIZED
    if is_copy and sys.getrefcount(variables) == 3:
        variables.clear()
    return found
