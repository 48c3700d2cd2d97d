"""Runs a loss many times from the same state, without lasting side effects."""

from __future__ import annotations

import contextlib
import inspect
import io
import random
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from ...ignoring.inside import gpu_in_use, graph_from, leaves_of, tree_map
from ..births.diagnosis import Diagnosis
from ..births.findings import History
from ..births.provenance import Kind as OfOrigin
from ..program.code import Places
from ..program.rerun import RandomState, without_asserts, without_warnings
from ..program.tensors import are_finite, tensors_in
from ..report.narration import Names, Narration
from ..report.report import Report
from ..training.before import Before
from ..watch.watch import Watch


class Case(NamedTuple):
    """A call of the loss: the tensors among its inputs, in order, and a factor for all parameters."""

    tensors: tuple[Tensor, ...]
    factor: float = 1.0

    def with_input(self, at: int, tensor: Tensor) -> Case:
        """The case with another value for one input."""
        return self._replace(tensors=(*self.tensors[:at], tensor, *self.tensors[at + 1 :]))

    def of_row(self, row: int) -> Case:
        """The case with one row of each input."""
        return self._replace(tensors=tuple(each[row : row + 1] if each.dim() else each for each in self.tensors))


class Numbers(NamedTuple):
    """A loss, and its gradients by the names of inputs and parameters."""

    loss: Tensor
    gradients: dict[str, Tensor]

    @property
    def is_finite(self) -> bool:
        return are_finite((self.loss, self.gradients))


Key = tuple[str, int, str]
"""The file, the line and the function of a birth."""

MOST_WIDENED = 10_000_000
"""The largest number of elements of all parameters for which a run in float64 copies the parameters."""


_NOT_FINITE = re.compile(r"\b(nan|inf|infinite|infinity)\b|finite", re.IGNORECASE)
"""What an error says by which a loss ends its run because of a NaN."""


class Brief(Narration):
    """Notes where something was born, without the user's names and without trying remedies."""

    def __init__(self, report: Report, history: History) -> None:
        super().__init__(report, Places(), history)
        self.found: dict[Key, OfOrigin] = {}

    def add(self, diagnoses: Iterable[Diagnosis], names: Names) -> None:
        """Add the results of a pass."""
        for diagnosis in diagnoses:
            place = diagnosis.birth.place
            if not diagnosis.is_implied:
                self.verdicts[diagnosis.birth] = diagnosis.verdict
                self.found.setdefault((place.filename, place.line, diagnosis.birth.operator), diagnosis.verdict.kind)


class Wide(TorchFunctionMode):
    """While entered, results have another dtype, but parameters stay unchanged, so a large model is not copied.

    A function that takes a parameter, or a view of one, runs in the parameter's dtype.
    """

    def __init__(self, parameters: Iterable[Tensor], dtype: torch.dtype) -> None:
        super().__init__()
        self._memory = {each.untyped_storage().data_ptr() for each in parameters}
        self._dtype = dtype

    def _is_parameter(self, thing: Any) -> bool:
        return isinstance(thing, Tensor) and thing.untyped_storage().data_ptr() in self._memory

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = args, kwargs or {}
        own = next((each.dtype for each in tensors_in(given) if self._is_parameter(each)), None)
        if own is None:
            return func(*args, **given[1])
        args, kwargs = tree_map(lambda thing: _wider(thing, own), given)
        result = func(*args, **kwargs)
        return tree_map(lambda thing: thing if self._is_parameter(thing) else _wider(thing, self._dtype), result)


class Mixed(TorchFunctionMode):
    """While entered, a function that refuses operands of two dtypes gets all of them in one dtype.

    The parameters of a loss and its inputs are widened, but not its constants, such as a frozen layer.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        try:
            return func(*args, **kwargs)
        except RuntimeError:
            floats = {each.dtype for each in tensors_in((args, kwargs)) if each.is_floating_point()}
            if len(floats) < 2 or self._dtype not in floats:
                raise
            args, kwargs = tree_map(lambda thing: _wider(thing, self._dtype), (args, kwargs))
            return func(*args, **kwargs)


class Loss:
    """A loss function with an example of its inputs.

    Args:
        function, inputs: the arguments of `explain.probe`.
        seed: the seed of the random numbers in each run.

    Attributes:
        example: the case of the user's own inputs.
        names: the names of its tensors.
        wants: which of them have a gradient.
        parameters: by name, the leaves of the graph, without the inputs.
        path: the code that takes the loss from the function's result, such as an index.
        runs: how often the loss was run.
        stops: the errors by which it ended a run because of a NaN or an infinity, as far as they say so.
        seconds: how long one run takes.
        is_random: whether the loss draws random numbers.
        is_large: whether the parameters are too large for copies in float64.
        dtype: the dtype of the loss.
    """

    def __init__(self, function: Callable[..., Any], inputs: tuple[Any, ...], seed: int) -> None:
        self.function, self._inputs, self.seed = function, inputs, seed
        self._given = tensors_in(inputs)
        self.example = Case(tuple(tensor.detach().clone() for tensor in self._given))
        self.wants = [tensor.requires_grad for tensor in self._given]
        self.names = _names(function, inputs)
        self.parameters: dict[str, Tensor] = {}
        self.runs, self.seconds = 0, 0.0
        self.stops: list[str] = []
        self.is_random, self.is_large, self.path = False, False, ""
        self.dtype = torch.get_default_dtype()
        self._before = Before(None, inputs)
        self._modules: dict[int, nn.Module] = {}

    @contextmanager
    def kept(self) -> Iterator[None]:
        """While entered, the loss may run. When the block ends, even by an error, the state from before is restored."""
        owner = getattr(self.function, "__self__", self.function)
        for module in owner.modules() if isinstance(owner, nn.Module) else ():
            self._keep(module)
        hook = register_module_forward_pre_hook(lambda module, inputs: self._keep(module))
        try:
            yield
        finally:
            hook.remove()
            self._before.put_back()

    def _keep(self, module: nn.Module) -> None:
        """Keep what a module has, before it is called for the first time."""
        if id(module) not in self._modules and not isinstance(module, torch.jit.ScriptModule):
            self._modules[id(module)] = module
            self._before.note_module(module)

    def begin(self) -> Numbers:
        """Run the example, and find the parameters. Errors that the loss raises reach the user."""
        with self._state():
            before = RandomState.now()
            loss, given = self._loss(self.example)
            self.is_random = before.has_changed()
            if not loss.requires_grad:
                self._want_one()
                loss, given = self._loss(self.example)
        self.dtype = loss.dtype
        inputs = set(map(id, given))
        leaves = {id(leaf): leaf for _, leaf in leaves_of(graph_from([loss])) if id(leaf) not in inputs}
        known: dict[int, str] = {}
        for module in self._modules.values():  # outer modules are called first, and know the longer names
            for name, parameter in module.named_parameters():
                known.setdefault(id(parameter), name)
        for number, leaf in enumerate(leaves.values()):
            name = known.get(id(leaf), f"parameter {number}")
            is_taken = name in self.parameters or name in self.names  # two models may share it
            self.parameters[f"{name} ({number})" if is_taken else name] = leaf
            self._before.note_grad(leaf)
        self.is_large = sum(leaf.numel() for leaf in leaves.values()) > MOST_WIDENED
        self.runs += 1
        began = time.monotonic()
        with self._state():
            numbers = self._differentiated(*self._loss(self.example))
        self.seconds = time.monotonic() - began
        return numbers

    def _want_one(self) -> None:
        """Let the first input of floats have a gradient, if nothing has."""
        first = next((at for at, tensor in enumerate(self._given) if tensor.is_floating_point()), None)
        if first is None:
            raise ValueError(
                "explain.probe found nothing to differentiate: the loss has no parameter, and no floating-point input. "
                "Give it an input that requires a gradient"
            )
        self.wants[first] = True

    def numbers(self, case: Case, dtype: torch.dtype | None = None) -> Numbers | None:
        """The loss and its gradients, also in another dtype; None if the loss refuses these inputs, or the dtype."""
        with self._tried(case, dtype):
            return self._differentiated(*self._loss(case, dtype))
        return None

    def fails(self, case: Case) -> bool:
        """Whether the loss or a gradient is not finite."""
        numbers = self.numbers(case)
        return numbers is not None and not numbers.is_finite

    def births(self, case: Case) -> dict[Key, OfOrigin]:
        """The places of the births that reach the loss or a gradient, with their kinds."""
        watch = Watch(Report())
        watch.narration = brief = Brief(watch.report, watch.findings.history)
        self._watch(watch, case)
        return brief.found

    def explained(self, case: Case) -> Report:
        """The full report of `explain` about a run. It also tries remedies, which takes longer."""
        watch = Watch(Report())
        self._watch(watch, case)
        return watch.report

    def _watch(self, watch: Watch, case: Case) -> None:
        with self._tried(case), watch:
            self._differentiated(*self._loss(case))

    def recorded(
        self, case: Case, mode: TorchFunctionMode, dtype: torch.dtype | None = None
    ) -> tuple[Tensor, list[Tensor]] | None:
        """Run the loss in a mode. Returns the loss and its inputs, all with a gradient; None if it refuses them."""
        with self._tried(case, dtype):
            return self._loss(case, dtype, all_want=True, mode=mode)
        return None

    def used(self, case: Case) -> list[Tensor]:
        """Which elements of the inputs have a gradient other than 0; empty if the loss refuses these inputs."""
        with self._tried(case):
            loss, given = self._loss(case, all_want=True)
            leaves = [leaf for leaf in given if leaf.requires_grad]
            gradients = iter(torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True))
            return [next(gradients) != 0 if leaf.requires_grad else torch.zeros_like(leaf).bool() for leaf in given]
        return []

    @contextmanager
    def _tried(self, case: Case, dtype: torch.dtype | None = None) -> Iterator[None]:
        """One run. If the loss refuses its inputs with an error, the rest of the block is left out."""
        self.runs += 1
        with self._state(case.factor, dtype):
            try:
                yield
            except (Exception, SystemExit) as error:
                if isinstance(error, SystemExit) or _NOT_FINITE.search(str(error)):
                    self.stops.append(f"{type(error).__name__}: {error}")

    @contextmanager
    def _state(self, factor: float = 1.0, dtype: torch.dtype | None = None) -> Iterator[None]:
        """While entered, everything is as before the first run, with other parameters, and nothing is printed.

        Parameters get other numbers by way of `.data`, so their own numbers are neither copied nor written to.
        """
        self._before.put_back()
        _seed(self.seed)
        kept = [(each, each.data) for each in self.parameters.values()]
        default = torch.get_default_dtype()
        try:
            if factor != 1 or dtype is not None and not self.is_large:
                for parameter, data in kept:
                    parameter.data = (data if self.is_large else _wider(data, dtype)) * factor
            if dtype is not None:
                torch.set_default_dtype(dtype)
                for module in self._modules.values():
                    module._buffers.update({name: _wider(each, dtype) for name, each in module._buffers.items()})
            silent = contextlib.redirect_stdout(io.StringIO())
            recording = torch.inference_mode(False), torch.enable_grad(), torch.autograd.set_detect_anomaly(False)
            with contextlib.ExitStack() as contexts:
                for context in (without_warnings(), without_asserts(), silent, *recording):
                    contexts.enter_context(context)
                yield
        finally:
            torch.set_default_dtype(default)
            for parameter, data in kept:
                parameter.data = data

    def _loss(
        self,
        case: Case,
        dtype: torch.dtype | None = None,
        all_want: bool = False,
        mode: AbstractContextManager[Any] | None = None,
    ) -> tuple[Tensor, list[Tensor]]:
        """Call the loss in a mode. Its tensors are new ones, which it may write to."""
        leaves = [_wider(tensor, dtype).detach().clone() for tensor in case.tensors]
        for leaf, wants in zip(leaves, self.wants, strict=True):
            leaf.requires_grad_(wants or all_want and leaf.is_floating_point())
        given = (leaf if old.is_leaf else leaf.clone() for leaf, old in zip(leaves, self._given, strict=True))
        wide: AbstractContextManager[Any] = nullcontext()
        if dtype is not None:
            wide = Wide(self.parameters.values(), dtype) if self.is_large else Mixed(dtype)
        with wide, mode or nullcontext():
            loss, self.path = loss_of(self.function(*self._with(given)))
        return loss, leaves

    def _with(self, tensors: Iterable[Tensor]) -> tuple[Any, ...]:
        """The user's inputs, with other tensors."""
        given = {id(old): new for old, new in zip(self._given, tensors, strict=True)}
        return tuple(tree_map(lambda thing: given.get(id(thing), thing), self._inputs))

    def _differentiated(self, loss: Tensor, given: list[Tensor]) -> Numbers:
        wanted = [(name, leaf) for name, leaf in zip(self.names, given, strict=True) if leaf.requires_grad]
        wanted += self.parameters.items()
        if not loss.requires_grad:
            return Numbers(loss.detach(), {})
        gradients = torch.autograd.grad(loss, [leaf for _, leaf in wanted], allow_unused=True)
        pairs = zip(wanted, gradients, strict=True)
        return Numbers(loss.detach(), {name: each for (name, _), each in pairs if each is not None})

    def inputs_of(self, case: Case) -> tuple[Any, ...]:
        """The inputs of a case, nested like the user's inputs, ready for a call."""
        pairs = zip(case.tensors, self.wants, strict=True)
        return self._with(tensor.clone().requires_grad_(wants) for tensor, wants in pairs)

    def is_failed_by(self, test: str, name: str, factor: float) -> bool:
        """Whether a test fails now. It may scale parameters, and call the loss by a name that it does not import."""
        names: dict[str, Any] = {name: self.function}
        with self._state():
            for parameter in self.parameters.values():
                parameter.data, parameter.grad = parameter.data if factor == 1 else parameter.data.clone(), None
            try:
                exec(test, names)
                next(value for key, value in names.items() if key.startswith("test_"))()
            except AssertionError:
                return True
            except Exception:
                pass
        return False


def loss_of(result: Any) -> tuple[Tensor, str]:
    """The loss in a function's result, and the code that takes the loss from this result.

    Raises:
        TypeError: if there is no tensor of floats at the place of the loss.
    """
    path = ""
    if isinstance(getattr(result, "loss", None), Tensor):
        result, path = result.loss, ".loss"
    elif isinstance(result, dict) and isinstance(result.get("loss"), Tensor):
        result, path = result["loss"], "['loss']"
    elif isinstance(result, (tuple, list)) and any(isinstance(each, Tensor) for each in result[:1]):
        numbers = [at for at, each in enumerate(result) if isinstance(each, Tensor) and each.dim() == 0]
        at = next((at for at in numbers if result[at].is_floating_point()), 0)
        result, path = result[at], f"[{at}]"
    if not isinstance(result, Tensor) or not result.is_floating_point():
        raise TypeError(
            "explain.probe needs the loss as a tensor of floats. The function may also return it first in a tuple, or "
            f'under the name "loss". It returned {type(result).__name__}'
        )
    return (result, path) if result.dim() == 0 else (result.sum(), f"{path}.sum()")


def _seed(seed: int) -> None:
    """Seed the random numbers of Python, NumPy and PyTorch.

    `torch.manual_seed` does so for all devices, and keeps a traceback for each device that is not in use. In a search,
    this takes a third of the time.
    """
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed)
    torch.default_generator.manual_seed(seed)
    gpus = gpu_in_use()
    if gpus is not None:
        gpus.manual_seed_all(seed)
    if torch.backends.mps.is_available():
        torch.mps.manual_seed(seed)


def _wider(thing: Any, dtype: torch.dtype | None) -> Any:
    is_float = isinstance(thing, Tensor) and thing.is_floating_point()
    return thing.to(dtype) if is_float and dtype is not None else thing


def _names(function: Callable[..., Any], inputs: tuple[Any, ...]) -> list[str]:
    """A name for each tensor of the inputs: that of its parameter, and of its place in it."""
    called = function.forward if isinstance(function, nn.Module) else function
    try:
        bound = inspect.signature(called).bind(*inputs).arguments
    except (TypeError, ValueError):
        bound = {f"input {number}": thing for number, thing in enumerate(inputs)}
    found: dict[int, str] = {}
    left = [*bound.items()]
    while left:
        path, thing = left.pop(0)
        if isinstance(thing, Tensor):
            found.setdefault(id(thing), path)
        elif isinstance(thing, (tuple, list)):
            left += [(f"{path}[{at}]", part) for at, part in enumerate(thing)]
        elif isinstance(thing, dict):
            left += [(f"{path}[{key!r}]", part) for key, part in thing.items()]
    return [found[id(tensor)] for tensor in tensors_in(inputs)]
