"""The user's code: the line that called an operator, and what a function's name says before the call.

The line is that of the deepest Python frame outside of PyTorch and of this library.
"""

from __future__ import annotations

import functools
import inspect
import linecache
import os
import sys
import unicodedata
from collections.abc import Callable, Iterator
from itertools import takewhile
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.nn import Parameter

from ...functions.numerics import Numerics, numerics_of
from ...ignoring.inside import is_sparse
from .tensors import is_collective, tensors_in

T = TypeVar("T")

_LIBRARY = Path(__file__).parents[2]
_INSIDE = tuple(f"{folder}{os.sep}" for folder in (Path(torch.__file__).parent, _LIBRARY))
_CALL = nn.Module._call_impl.__code__
_LOAD = nn.Module._load_from_state_dict.__code__
_CHECKPOINT = torch.utils.checkpoint.__file__
_OBEYED = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""The categories of characters that control a terminal, change the direction of text, or end a line."""
_NOWHERE = compile("", "", "exec")
_AROUND = 40
"""The largest number of frames that are searched for a module."""


class Place(NamedTuple):
    """The place of a call. Noting it must be cheap, so its line is computed only on request."""

    code: CodeType
    instruction: int
    module: nn.Module | None

    @property
    def filename(self) -> str:
        return self.code.co_filename

    @property
    def line(self) -> int:
        lines = (line for start, end, line in self.code.co_lines() if start <= self.instruction < end and line)
        return next(lines, self.code.co_firstlineno)

    @property
    def function(self) -> str:
        return self.code.co_qualname

    @property
    def source(self) -> str:
        return linecache.getline(self.filename, self.line).strip()


@functools.cache
def is_inside(filename: str) -> bool:
    """Whether a file belongs to PyTorch or to this library."""
    return filename.startswith(_INSIDE) or filename.startswith("<frozen")


def place_here(frame: FrameType | None = None) -> Place:
    """The call that led to a frame, or to the caller."""
    at: FrameType | None = sys._getframe(1) if frame is None else frame
    start = at
    module = None
    while at is not None and is_inside(at.f_code.co_filename):
        if module is None and at.f_code is _CALL:
            module = at.f_locals.get("self")
        start, at = at, at.f_back
    found = at if at is not None else start
    assert found is not None
    for _ in range(_AROUND):
        if module is not None or at is None:
            break
        if at.f_code is _CALL:
            module = at.f_locals.get("self")
        at = at.f_back
    return Place(found.f_code, found.f_lasti, module)


def place_at(filename: str, line: int, function: str, module: nn.Module | None) -> Place:
    """A place for which only the line is known."""
    code = _NOWHERE.replace(
        co_filename=filename, co_firstlineno=line, co_name=function, co_qualname=function, co_linetable=b""
    )
    return Place(code, 0, module)


def _outward(at: FrameType | None) -> Iterator[FrameType]:
    """A frame, and those that led to it."""
    while at is not None:
        yield at
        at = at.f_back


def modules_around() -> list[nn.Module]:
    """The modules whose calls led here, the outermost first."""
    return [at.f_locals["self"] for at in _outward(sys._getframe(1)) if at.f_code is _CALL][::-1]


class Caller(NamedTuple):
    """A line from which a function was called, and the code that this line is in."""

    code: CodeType
    line: int


Callers = tuple[Caller, ...]
"""The lines that led to a call, the outermost first."""


class Places:
    """The places of one block, with the modules around each module when it was first called.

    Attributes:
        around: by module, the modules whose calls led to its call, the outermost first.
        callers: by the code of a function, the lines of the user's that led to its calls, the outermost first.
        inside: the current call in a compiled region, while its graph runs a second time.
    """

    def __init__(self) -> None:
        self.around: WeakKeyDictionary[nn.Module, list[nn.Module]] = WeakKeyDictionary()
        self.callers: dict[CodeType, dict[Callers, None]] = {}
        self.inside: Place | None = None

    def here(self) -> Place:
        """The call that led here."""
        if self.inside is not None:
            return self.inside
        place = place_here()
        module = place.module
        if module is not None and module not in self.around:
            self.around[module] = modules_around()
        users = [at for at in _outward(sys._getframe(1)) if not is_inside(at.f_code.co_filename)]
        led = tuple(Caller(at.f_code, at.f_lineno) for at in users[:0:-1])
        self.callers.setdefault(place.code, {})[led] = None
        return place


def printable(text: str) -> str:
    """The user's text as one line. Characters that a terminal or a browser would obey are escaped.

    >>> print(printable("a" + chr(27) + "[2Jb" + chr(0x202E) + "c"))
    a\\x1b[2Jb\\u202ec
    """
    if text.isprintable():
        return text
    return "".join(
        repr(each)[1:-1] if unicodedata.category(each) in _OBEYED and each != "\t" else each for each in text
    )


def users_frame() -> FrameType | None:
    """The deepest frame outside of PyTorch and of this library."""
    return next((at for at in _outward(sys._getframe(1)) if not is_inside(at.f_code.co_filename)), None)


def optimizer_here() -> str:
    """The name of the optimizer whose step runs now; empty outside a step, and in the user's closure."""
    for at in _outward(sys._getframe(1)):
        code = at.f_code
        if code.co_name == "step" and code.co_varnames[:1] == ("self",):  # the locals of other frames would be kept
            owner = at.f_locals.get("self")
            if isinstance(owner, torch.optim.Optimizer):
                return type(owner).__name__
        if not is_inside(code.co_filename):
            break
    return ""


def _inside_here() -> Iterator[CodeType]:
    """The code of PyTorch and of this library that the user's code has called."""
    ours = takewhile(lambda at: is_inside(at.f_code.co_filename), _outward(sys._getframe(1)))
    return (at.f_code for at in ours)


def is_loading() -> bool:
    """Whether a module is now copying a loaded state into its parameters and buffers."""
    return _LOAD in _inside_here()


def is_recomputed() -> bool:
    """Whether a checkpoint is now running this code again."""
    return any(at.f_code.co_filename == _CHECKPOINT for at in _outward(sys._getframe(1)))


def is_module(thing: object) -> bool:
    """Whether a variable is a module. `isinstance` is not used, because it may raise an error for a proxy."""
    return issubclass(type(thing), nn.Module)


def of_variables(frame: FrameType, choose: Callable[[list[tuple[str, Any]]], list[T]]) -> list[T]:
    """The result of `choose` for the variables of a frame, given as pairs of name and value."""
    variables = frame.f_locals
    found = choose([(name, value) for name, value in list(variables.items()) if not name.startswith("_")])
    # Up to Python 3.12, a function's frame keeps this copy of its variables, and with it all tensors, until the
    # function returns. So we clear the copy, unless the user has it from `locals()`. Then it has more references than
    # those of the frame, this function and the call of `getrefcount`.
    is_copy = type(variables) is dict and frame.f_code.co_flags & inspect.CO_OPTIMIZED
    if is_copy and sys.getrefcount(variables) == 3:
        variables.clear()
    return found


# What is known about a function before it is called.

_WRITES_BUFFERS = {F.batch_norm: 1, F.instance_norm: 1, torch.batch_norm: 3, torch.instance_norm: 3}
"""Functions that write to two of their arguments, beginning with this one, if the argument at position 5 is true."""


_DATA = Tensor.data.__get__  # type: ignore[attr-defined]
"""The function that `x.data` calls. It returns the same as `x.detach()`."""


class Plan(NamedTuple):
    """What is known about a function before it is called.

    Attributes:
        name: its public name.
        is_checked: whether its result has to be checked.
        in_place: whether it changes its first argument.
        numerics: what is known about its numerical behaviour.
    """

    name: str
    is_checked: bool
    in_place: bool
    numerics: Numerics


@functools.lru_cache(4096)
def plan_of(function: Any) -> Plan:
    """The plan for a function, which follows from its name."""
    name = "detach" if function == _DATA else getattr(function, "__name__", type(function).__name__)
    known = numerics_of(name)
    changes = name == "__setitem__" or name.startswith("__i") and name.endswith("__") and known.name != name
    in_place = changes or (name.endswith("_") and not name.endswith("__"))
    public = known.name.rstrip("_") if in_place else known.name.removesuffix("_")
    is_checked = known.makes not in ("nothing", "no graph") and not is_collective(function)
    return Plan(public, is_checked, in_place, numerics_of(public))


def overwritten_by(plan: Plan, args: Any) -> list[Tensor]:
    """The tensors that an in-place call has overwritten. A fused optimizer also overwrites its states."""
    return [tensor for at in _written(f"{plan.name}_") for tensor in tensors_in(args[at : at + 1])]


@functools.cache
def _written(name: str) -> list[int]:
    """The positions of the arguments that an operator in place writes to; the gradients are only rescaled."""
    operator = getattr(torch.ops.aten, name, None) if name.startswith("_fused") else None
    if operator is None:
        return [0]
    arguments = enumerate(operator.default._schema.arguments)
    return [at for at, each in arguments if each.alias_info and each.alias_info.is_write and each.name != "grads"]


def buffers_of(function: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """The buffers that a call writes to: the running statistics of a normalization in training."""
    first = _WRITES_BUFFERS.get(function)
    if first is None:
        return []
    default = kwargs.get("training", kwargs.get("use_input_stats", function is F.instance_norm))
    if not (args[5] if len(args) > 5 else default):
        return []
    given = [*args[first : first + 2], kwargs.get("running_mean"), kwargs.get("running_var")]
    return [value for value in given if isinstance(value, Tensor)]


def is_recoverable(plan: Plan, args: Any) -> bool:
    """Whether the numbers that an in-place call overwrites can be recovered after the call."""
    replaces = plan.in_place and plan.numerics.replaces and bool(args)
    return replaces and type(args[0]) in (Tensor, Parameter) and not is_sparse(args[0])
