"""What a program does, seen without the tool: where values stop being finite, going forward and coming back."""

import re
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
from corpus import Program
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from zero_or_nan import ignoring

# What puts values down as they are, or only hands them on: an infinity that is written is nobody's mistake yet.
WRITES = set(
    """lift_fresh lift_fresh_copy full full_like new_full scalar_tensor fill fill_ masked_fill masked_fill_ index_put
    index_put_ scatter scatter_ copy_ zero_ uniform_ normal_ random_ bernoulli_ exponential_ empty empty_like
    empty_strided new_empty new_empty_strided resize_ set_ detach detach_ alias clone view _unsafe_view _reshape_alias
    as_strided select slice expand unsqueeze squeeze t transpose permute unbind split _local_scalar_dense isnan isinf
    isfinite ne eq gt lt ge le""".split()
)
DUNDERS = {
    "add": "add radd iadd",
    "sub": "sub rsub isub",
    "mul": "mul rmul imul",
    "div": "truediv rtruediv itruediv div rdiv idiv",
    "pow": "pow rpow ipow",
    "matmul": "matmul rmatmul imatmul",
    "neg": "neg",
}
PUBLIC = {f"__{name}__": public for public, names in DUNDERS.items() for name in names.split()}


@dataclass(frozen=True)
class Event:
    """A place where a value was not finite any more.

    `lines` are the lines of the program that were running, the innermost first. `how` is "made" where what went in was
    finite, or infinite and NaN came out; "took nan" and "took inf" where data came in that was not finite. `entries`
    are the indices of the elements that came out so.
    """

    lines: tuple[int, ...]
    how: str
    entries: frozenset[tuple[int, ...]]


@dataclass
class Seen:
    """What a program did.

    `forward` and `backward` are in order of time; `names`, `modules` and `numbers` say by line what was called, in
    which module, and what went in. `finite` is whether every loss, gradient and result was finite.
    """

    finite: bool = True
    forward: list[Event] = field(default_factory=list)
    backward: list[Event] = field(default_factory=list)
    names: dict[int | None, set[str]] = field(default_factory=lambda: defaultdict(set))
    modules: dict[int | None, set[str]] = field(default_factory=lambda: defaultdict(set))
    numbers: dict[int | None, set[float]] = field(default_factory=lambda: defaultdict(set))


def observe(program: Program) -> Seen:
    """Run a program under PyTorch's modes and hooks."""
    seen = Seen()
    passes = Passes(seen, watched=program.filename)
    with ExitStack() as stack:
        # Nodes know the line that made them in anomaly mode alone; it need not look for NaN itself.
        stack.enter_context(torch.autograd.set_detect_anomaly(True, check_nan=False))
        stack.enter_context(passes.patched())
        running = stack.enter_context(modules_running())
        passes.within = lambda: _Names(seen, running, program.filename)
        stack.enter_context(_Names(seen, running, program.filename))
        values = stack.enter_context(_Values(seen, passes, program.filename))
        passes.remember = values.remember
        passes.judge(tree_leaves(program.run()))
    return seen


def ends_finite(program: Program, by_ignoring: bool = False) -> bool:
    """Whether losses, gradients and results are finite: by PyTorch's backward, or by `ignoring`'s in its place."""
    seen = Seen()
    passes = Passes(seen, by_ignoring=by_ignoring)
    with passes.patched(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "ignoring could not follow")  # a function of one's own
        passes.judge(tree_leaves(program.run()))
    return seen.finite


def ends_finite_in_float64(program: Program) -> bool:
    """The same where each number is a float64, whatever the program says."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with patch("torch.autocast", lambda *_, **__: ExitStack()), _Double():
            return ends_finite(program)
    finally:
        torch.set_default_dtype(before)


class Passes:
    """What every backward pass of a program is given, and what comes of it."""

    def __init__(self, seen: Seen, by_ignoring: bool = False, watched: str | None = None) -> None:
        self.seen, self.watched = seen, watched
        self.under_way, self.depth, self.looking = False, 0, False
        self.within: Callable[[], Any] = nullcontext  # modes are off while PyTorch calls backward for them
        self.remember: Callable[[list[Tensor]], None] = lambda tensors: None
        self.run = {name: getattr(ignoring if by_ignoring else torch.autograd, name) for name in ("backward", "grad")}

    @contextmanager
    def patched(self) -> Iterator[None]:
        """`Tensor.backward`, too, calls `torch.autograd.backward`."""
        engine = torch.autograd._engine_run_backward

        def run(*args: Any, **kwargs: Any) -> Any:
            with self.within():
                return engine(*args, **kwargs)

        with ExitStack() as stack:
            stack.enter_context(patch.object(torch.autograd, "_engine_run_backward", run))
            for name in self.run:
                stack.enter_context(patch.object(torch.autograd, name, self._pass(name)))
            yield

    def _pass(self, name: str) -> Callable[..., Any]:
        plain = getattr(torch.autograd, name)

        def run(roots: Any, *args: Any, **kwargs: Any) -> Any:
            if self.under_way:  # a pass within a pass: of a checkpoint, or of `ignoring`
                return plain(roots, *args, **kwargs)
            roots = [roots] if isinstance(roots, Tensor) else list(roots)
            self.judge(roots)
            nodes = graph(root.grad_fn for root in roots)
            if self.watched:
                for node in nodes:
                    self._watch(node)
            self.under_way, self.depth = True, len(lines_now(self.watched or ""))
            try:
                result = self.run[name](roots, *args, **kwargs)
            finally:
                self.under_way = False
            self.judge([node.variable.grad for node in nodes if hasattr(node, "variable")])
            self.judge(tree_leaves(result))
            return result

        return run

    def judge(self, tensors: list[Any]) -> None:
        before, self.looking = self.looking, True
        wrong = [tensor for tensor in tensors if isinstance(tensor, Tensor) and not finite(tensor)]
        self.looking = before
        self.seen.finite &= not wrong
        self.remember(wrong)

    def _watch(self, node: Any) -> None:
        if hasattr(node, "variable"):
            return

        def after(given: tuple[Tensor | None, ...], got: tuple[Tensor | None, ...]) -> None:
            wrong = [gradient for gradient in given if gradient is not None and not finite(gradient)]
            if wrong and all(finite(gradient) for gradient in got if gradient is not None):
                self.seen.backward.append(Event(_lines_of(node, self.watched), "made", _entries(wrong[0])))

        node.register_hook(after)


def graph(roots: Any) -> list[Any]:
    """Every node of a graph."""
    found: dict[Any, None] = {}
    waiting = list(roots)
    while waiting:
        node = waiting.pop()
        if node is not None and node not in found:
            found[node] = None
            waiting += [following for following, _ in node.next_functions]
    return list(found)


def finite(tensor: Tensor) -> bool:
    """Whether every element is finite."""
    return bool(tensor.isfinite().all())


@contextmanager
def modules_running() -> Iterator[list[tuple[nn.Module, str]]]:
    """The modules whose forward is running, the outermost first, each with the name that it has there."""
    running: list[tuple[nn.Module, str]] = []

    def enter(module: nn.Module, args: Any) -> None:
        root = running[0][0] if running else module
        running.append((module, next((name for name, one in root.named_modules() if one is module), "")))

    def leave(module: nn.Module, args: Any, result: Any) -> None:
        running.pop()

    hooks = (
        nn.modules.module.register_module_forward_pre_hook(enter),
        nn.modules.module.register_module_forward_hook(leave),
    )
    try:
        yield running
    finally:
        for hook in hooks:
            hook.remove()


def lines_now(filename: str) -> tuple[int, ...]:
    """The lines of a file that are running, the innermost first."""
    found, frame = [], sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == filename:
            found.append(frame.f_lineno)
        frame = frame.f_back
    return tuple(found)


def lines_in(text: str, filename: str) -> tuple[int, ...]:
    """The lines of a file in a traceback, the innermost first."""
    return tuple(map(int, reversed(re.findall(rf'File "{re.escape(filename)}", line (\d+)', text))))


def _lines_of(node: Any, filename: str | None) -> tuple[int, ...]:
    assert filename is not None
    while node.metadata.get("parent_") is not None:  # it was made by a backward pass, for a node that has the line
        node = node.metadata["parent_"]
    return lines_in("".join(node.metadata.get("traceback_", [])), filename)


def _entries(tensor: Tensor) -> frozenset[tuple[int, ...]]:
    return frozenset(tuple(index) for index in tensor.isfinite().logical_not().nonzero().tolist())


class _Values(TorchDispatchMode):
    def __init__(self, seen: Seen, passes: Passes, filename: str) -> None:
        super().__init__()
        self.seen, self.passes, self.filename = seen, passes, filename
        self.computed: set[int] = set()
        self.kept: list[Tensor] = []  # a storage's address is not given away while it is known by it

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        lines = lines_now(self.filename)
        if self.passes.looking or (self.passes.under_way and len(lines) <= self.passes.depth):
            # Nodes have hooks of our own. A derivative is also given tensors that are not there, and crash who looks.
            return func(*args, **kwargs)
        name = func.overloadpacket.__name__
        taken = _floats((args, {key: value for key, value in kwargs.items() if key != "out"}))
        for line in lines[:1]:
            self.seen.numbers[line].update(number for tensor in taken for number in _numbers(tensor))
            self.seen.numbers[line].update(leaf for leaf in tree_leaves(args) if isinstance(leaf, int | float))
        wrong = [tensor for tensor in taken if not finite(tensor)]
        undefined = any(bool(tensor.isnan().any()) for tensor in wrong)
        spread = any(self._key(tensor) in self.computed for tensor in wrong)
        result = func(*args, **kwargs)
        if name in WRITES:
            if spread:
                self.remember(_floats(result))
            return result
        results = _floats(result) or (_floats(args[:1]) if name.endswith("_") else [])  # _foreach_div_ returns nothing
        bad = [tensor for tensor in results if not finite(tensor)]
        made = bool(bad) and (not wrong or (not undefined and any(bool(tensor.isnan().any()) for tensor in bad)))
        took = bool(wrong) and not spread and (bool(bad) or undefined)
        if made or took:
            how = "made" if made else "took nan" if undefined else "took inf"
            event = Event(lines, how, _entries(bad[0]) if bad else frozenset())
            (self.seen.backward if self.passes.under_way else self.seen.forward).append(event)
        if bad:
            self.remember(bad)
        return result

    def remember(self, tensors: list[Tensor]) -> None:
        self.kept += tensors
        self.computed |= {self._key(tensor) for tensor in tensors}

    @staticmethod
    def _key(tensor: Tensor) -> int:
        return tensor.untyped_storage()._cdata


class _Names(TorchFunctionMode):
    """What is called from each line, under its public name, and in which module."""

    def __init__(self, seen: Seen, running: list[tuple[nn.Module, str]], filename: str) -> None:
        super().__init__()
        self.seen, self.running, self.filename = seen, running, filename

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        line = (*lines_now(self.filename), None)[0]
        name = getattr(func, "__name__", "")
        self.seen.names[line].add(PUBLIC.get(name) or (name if name.startswith("__") else name.rstrip("_")))
        self.seen.modules[line].update(name for _, name in self.running[-1:])
        return func(*args, **(kwargs or {}))


class _Double(TorchFunctionMode):
    """Every number that is less than a float64 is asked for as one."""

    LESS = (torch.float16, torch.bfloat16, torch.float32)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__.startswith("_amp_"):  # what GradScaler looks at, in float32 alone
            return None
        if func in (Tensor.half, Tensor.bfloat16, Tensor.float):
            func = Tensor.double
        wide = [torch.float64 if any(value is dtype for dtype in self.LESS) else value for value in args]
        named = {
            key: torch.float64 if any(value is dtype for dtype in self.LESS) else value
            for key, value in (kwargs or {}).items()
        }
        return func(*wide, **named)


def _numbers(tensor: Tensor) -> list[float]:
    return [] if tensor.is_complex() else tensor.detach().flatten().unique().tolist()


def _floats(value: Any) -> list[Tensor]:
    tensors = [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]
    return [tensor for tensor in tensors if tensor.is_floating_point() or tensor.is_complex()]
