"""A loss that runs again and again from the same state, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import inspect
import io
import math
import random
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from ...ignoring.inside import graph_from, leaves_of, tree_map
from ..births.diagnosis import Diagnosis
from ..births.findings import History
from ..births.provenance import Kind as OfOrigin
from ..program.tensors import are_finite, tensors_in
from ..report.narration import Names, Narration
from ..report.report import Report
from ..training.before import Before
from ..watch.watch import Watch


class Case(NamedTuple):
    """What a loss is called with.

    Attributes:
        tensors: the values of the tensors among the inputs, in order.
        factor: what all parameters are multiplied by.
    """

    tensors: tuple[Tensor, ...]
    factor: float = 1.0


class Numbers(NamedTuple):
    """A loss, and the gradients by inputs and parameters; None for what the loss does not depend on."""

    loss: Tensor
    gradients: tuple[Tensor | None, ...]

    @property
    def is_finite(self) -> bool:
        return are_finite((self.loss, self.gradients))


Recorder = TypeVar("Recorder", bound=TorchFunctionMode)


Key = tuple[str, int, str]
"""The file, the line and the function of a birth."""


class Brief(Narration):
    """Notes where something was born, without the user's names and without trying remedies."""

    def __init__(self, report: Report, history: History) -> None:
        super().__init__(report, {}, history)
        self.found: dict[Key, OfOrigin] = {}

    def add(self, diagnoses: Iterable[Diagnosis], names: Names) -> None:
        """Add what a pass has found."""
        for diagnosis in diagnoses:
            place = diagnosis.birth.place
            if not diagnosis.is_implied:
                self.verdicts[diagnosis.birth] = diagnosis.verdict
                self.found.setdefault((place.filename, place.line, diagnosis.birth.operator), diagnosis.verdict.kind)


_LONG = 3.0
"""The seconds from which on a search says how long it takes, and after which it says again how far it is."""


class TimeIsUp(Exception):
    """The search has taken the time that it was given."""


class Loss:
    """A loss function with an example of its inputs.

    Args:
        function, inputs: what the user gave to `explain.probe`.
        seed: of the random numbers in each run.
        seconds: how long the search may take.

    Attributes:
        example: the case of the user's own inputs.
        names: the names of its tensors.
        parameters: by name, the leaves of the graph that are no inputs.
        path: the code that takes the loss from what the function returns.
        runs: how often the loss was run.
        is_random: whether the loss draws random numbers.
        dtype: that of the loss.
        ends: when the time is up.
    """

    def __init__(self, function: Callable[..., Any], inputs: tuple[Any, ...], seed: int, seconds: float) -> None:
        self.function, self._inputs, self.seed = function, inputs, seed
        self._seconds, self.ends = seconds, time.monotonic() + seconds
        self._next = math.inf
        self._given = tensors_in(inputs)
        self.example = Case(tuple(tensor.detach().clone() for tensor in self._given))
        self._wants = [tensor.requires_grad for tensor in self._given]
        self.names = _names(function, inputs)
        self.parameters: dict[str, Tensor] = {}
        self.runs, self.is_random, self.path = 0, False, ""
        self.dtype = torch.get_default_dtype()
        self._before = Before(None, inputs)
        self._modules: dict[int, nn.Module] = {}

    @contextmanager
    def kept(self) -> Iterator[None]:
        """While entered, the loss may run. Then everything is as it was, whatever ended the block."""
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
        """Keep what a module has, before it is called for the first time: its buffers, its modes, its attributes."""
        if id(module) in self._modules or isinstance(module, torch.jit.ScriptModule):
            return
        self._modules[id(module)] = module
        for mapping in (vars(module), module._buffers):
            self._before.dicts.append((mapping, dict(mapping)))
        self._before.buffers += [(each, each.detach().clone()) for each in module.buffers(recurse=False)]
        for parameter in module.parameters():
            self._keep_grad(parameter)

    def _keep_grad(self, leaf: Tensor) -> None:
        """Keep which tensor is the `.grad` of a leaf. A run asks for gradients, and adds nothing to it."""
        self._before.grads.setdefault(id(leaf), (leaf, leaf.grad, None))

    def begin(self) -> Numbers:
        """Run the example, and find the parameters. Errors of the loss are the user's."""
        with self._state():
            torch.manual_seed(self.seed)
            before = torch.get_rng_state()
            loss, given = self._loss(self.example, None)
            self.is_random = not torch.equal(before, torch.get_rng_state())
            if not loss.requires_grad:
                self._want_one()
                loss, given = self._loss(self.example, None)
        ids = set(map(id, given))
        leaves = [leaf for _, leaf in leaves_of(graph_from([loss]))]
        found = list({id(leaf): leaf for leaf in leaves if id(leaf) not in ids}.values())
        known: dict[int, str] = {}
        for module in self._modules.values():  # outer modules are called first, and know the longer names
            for name, parameter in module.named_parameters():
                known.setdefault(id(parameter), name)
        for number, leaf in enumerate(found):
            name = known.get(id(leaf), f"parameter {number}")
            self.parameters[f"{name} ({number})" if name in self.parameters else name] = leaf  # two models may share it
            self._keep_grad(leaf)
        self.runs += 1
        self.dtype = loss.dtype
        with self._state():
            return self._differentiated(*self._loss(self.example, None))

    def _want_one(self) -> None:
        """Let the first input of floats have a gradient, if nothing has."""
        first = next((at for at, tensor in enumerate(self._given) if tensor.is_floating_point()), None)
        if first is None:
            raise ValueError(
                "explain.probe found nothing to differentiate: the loss has no parameter, and no input of floats. "
                "Give it an input that requires a gradient"
            )
        self._wants[first] = True

    def wants(self, at: int) -> bool:
        """Whether an input has a gradient."""
        return self._wants[at]

    def numbers(self, case: Case) -> Numbers | None:
        """The loss and its gradients; None if the loss refuses these inputs with an error."""
        return self._run(case, None)

    def exact(self, case: Case) -> Numbers | None:
        """The same in float64; None if the loss can't run in it."""
        return self._run(case, torch.float64)

    def fails(self, case: Case) -> bool:
        """Whether the loss or a gradient is not finite."""
        numbers = self.numbers(case)
        return numbers is not None and not numbers.is_finite

    def births(self, case: Case) -> dict[Key, OfOrigin]:
        """Where `explain` finds births that reach the loss or a gradient, with their kinds."""
        watch = Watch(Report())
        watch.narration = brief = Brief(watch.report, watch.findings.history)
        self._watch(watch, case)
        return brief.found

    def explained(self, case: Case) -> Report:
        """Everything that `explain` says of a run: it also tries remedies, which takes longer."""
        watch = Watch(Report())
        self._watch(watch, case)
        return watch.report

    def _watch(self, watch: Watch, case: Case) -> None:
        self._check_time()
        with self._state(case.factor), contextlib.suppress(Exception):
            try:
                watch.__enter__()
                self._differentiated(*self._loss(case, None))
            finally:
                watch.end()

    def recorded(self, case: Case, mode: Recorder) -> tuple[Recorder, list[Tensor]] | None:
        """Run the loss in a mode that keeps calls; each input of floats has a gradient there.

        Returns:
            The mode and the inputs that the graph begins at; None if the loss refuses these inputs.
        """
        self._check_time()
        with self._state(case.factor), contextlib.suppress(Exception):
            with mode:
                _, given = self._loss(case, None, True)
            return mode, given
        return None

    def announce(self, tries: int) -> None:
        """Say in a terminal how long the search will take, if it takes long."""
        begun, now = self.ends - self._seconds, time.monotonic()
        wanted = (now - begun) / max(self.runs, 1) * tries
        if wanted > _LONG and sys.stderr.isatty():
            about = min(wanted, self._seconds)
            print(f"explain.probe: {tries} inputs to try, about {about:.0f} seconds", file=sys.stderr, flush=True)
            self._next = now

    @contextmanager
    def overtime(self) -> Iterator[None]:
        """While entered, the loss may run although the time is up: what is begun is brought to an end."""
        ends, self.ends = self.ends, math.inf
        try:
            yield
        finally:
            self.ends = ends

    def _check_time(self) -> None:
        now = time.monotonic()
        if now > self.ends:
            raise TimeIsUp
        self.runs += 1
        if now > self._next + _LONG:
            self._next = now
            left = self.ends - now
            print(f"explain.probe: {self.runs} runs, at most {left:.0f} seconds left", file=sys.stderr, flush=True)

    def _run(self, case: Case, dtype: torch.dtype | None) -> Numbers | None:
        self._check_time()
        with self._state(case.factor, dtype):
            try:
                return self._differentiated(*self._loss(case, dtype))
            except Exception:  # the loss refuses such inputs, or can't run in this dtype
                return None

    @contextmanager
    def _state(self, factor: float = 1.0, dtype: torch.dtype | None = None) -> Iterator[None]:
        """While entered, everything is as before the first run, with other parameters, and nothing is printed.

        Parameters get other numbers by way of `.data`, so their own numbers are neither copied nor written to.
        """
        self._before.put_back()
        torch.manual_seed(self.seed)
        random.seed(self.seed)
        if numpy := sys.modules.get("numpy"):
            numpy.random.seed(self.seed)
        kept = [(each, each.data) for each in self.parameters.values()] if factor != 1 or dtype is not None else []
        default = torch.get_default_dtype()
        try:
            for parameter, data in kept:
                parameter.data = (data if dtype is None else _wider(data, dtype)) * factor
            if dtype is not None:
                torch.set_default_dtype(dtype)
                for module in self._modules.values():
                    module._buffers.update({name: _wider(each, dtype) for name, each in module._buffers.items()})
            with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), torch.enable_grad():
                warnings.simplefilter("ignore")
                yield
        finally:
            torch.set_default_dtype(default)
            for parameter, data in kept:
                parameter.data = data

    def _loss(self, case: Case, dtype: torch.dtype | None, all_want: bool = False) -> tuple[Tensor, list[Tensor]]:
        """Call the loss. Its tensors are new ones, which it may write to."""
        given, leaves = {}, []
        for original, tensor, wants in zip(self._given, case.tensors, self._wants, strict=True):
            leaf = _wider(tensor, dtype).detach().clone()
            leaf.requires_grad_(wants or all_want and leaf.is_floating_point())
            leaves.append(leaf)
            given[id(original)] = leaf if original.is_leaf else leaf.clone()
        loss, self.path = loss_of(self.function(*tree_map(lambda thing: given.get(id(thing), thing), self._inputs)))
        return loss, leaves

    def _differentiated(self, loss: Tensor, given: list[Tensor]) -> Numbers:
        wanted = [leaf for leaf in given if leaf.requires_grad] + [*self.parameters.values()]
        if not loss.requires_grad:
            return Numbers(loss.detach(), (None,) * len(wanted))
        return Numbers(loss.detach(), torch.autograd.grad(loss, wanted, allow_unused=True))

    def is_failed_by(self, test: str, name: str) -> bool:
        """Whether a test fails now. The test may call the loss by a name that it does not import."""
        names: dict[str, Any] = {name: self.function}
        with self._state():
            kept = [(each, each.data) for each in self.parameters.values()]
            try:
                for parameter, data in kept:
                    parameter.data, parameter.grad = data.clone(), None
                exec(test, names)
                next(value for key, value in names.items() if key.startswith("test_"))()
            except AssertionError:
                return True
            except Exception:
                return False
            finally:
                for parameter, data in kept:
                    parameter.data = data
        return False

    def inputs_of(self, case: Case) -> tuple[Any, ...]:
        """The inputs of a case, in the form of the user's, ready for a call."""
        pairs = zip(self._given, case.tensors, self._wants, strict=True)
        given = {id(original): tensor.clone().requires_grad_(wants) for original, tensor, wants in pairs}
        return tuple(tree_map(lambda thing: given.get(id(thing), thing), self._inputs))


def loss_of(result: Any) -> tuple[Tensor, str]:
    """The loss in what a function returned, and the code that takes it from there.

    Raises:
        TypeError: if there is no tensor of floats at the place of the loss.
    """
    path = ""
    if isinstance(getattr(result, "loss", None), Tensor):
        result, path = result.loss, ".loss"
    elif isinstance(result, dict) and isinstance(result.get("loss"), Tensor):
        result, path = result["loss"], "['loss']"
    elif isinstance(result, (tuple, list)) and result and isinstance(result[0], Tensor):
        result, path = result[0], "[0]"
    if not isinstance(result, Tensor) or not result.is_floating_point():
        raise TypeError(
            "explain.probe needs the loss as a tensor of floats. The function may also return it first in a tuple, or "
            f'by the name "loss". It returned {type(result).__name__}'
        )
    return (result, path) if result.dim() == 0 else (result.sum(), f"{path}.sum()")


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

    def name(thing: Any, path: str) -> None:
        if isinstance(thing, Tensor):
            found.setdefault(id(thing), path)
        elif isinstance(thing, (tuple, list)):
            for at, part in enumerate(thing):
                name(part, f"{path}[{at}]")
        elif isinstance(thing, dict):
            for key, part in thing.items():
                name(part, f"{path}[{key!r}]")

    for key, thing in bound.items():
        name(thing, key)
    return [found[id(tensor)] for tensor in tensors_in(inputs)]
