"""Explains a training step when it fails. Until then, a step costs one check of the loss and the gradients."""

from __future__ import annotations

import functools
import inspect
import math
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, ParamSpec, TypeVar, overload
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ...ignoring.inside import graph_from, home, lead_home, leaves_of, not_compiled
from ...replacing import put_back, replace, replace_engine
from ..births.arithmetic import number
from ..program.pasted import Pasted
from ..program.tensors import are_finite_at_once, each_in, in_several_processes, tensors_in
from ..report.course import Course, largest, loss_among
from ..report.report import NotFiniteError, Report
from ..watch.watch import Watch
from .before import Before, parameters_of

P = ParamSpec("P")
R = TypeVar("R")


_NO_ITERATOR = ". If the step takes its batch from an iterator, pass the batch to the step as an argument instead"
_NOT_REPEATED = (
    "the step was not finite, and when it ran again, watched, it was: what happened does not repeat itself"
    + _NO_ITERATOR
)
_RAISED_AGAIN = (
    "the step was not finite, and when it ran again, watched, it raised {error}: the report may lack origins"
    + _NO_ITERATOR
)
_LATE = (
    "explain.on_failure can't watch {name}: a generator or a coroutine has not run yet when its function returns. "
    "Decorate a function that runs forward and backward before it returns"
)


class _Failed(BaseException):
    """Ends a step whose gradient is not finite, before its optimizer can use it."""


@overload
def on_failure(step: Callable[P, R], *, model: nn.Module | None = None) -> Callable[P, R]: ...
@overload
def on_failure(step: None = None, *, model: nn.Module | None = None) -> Callable[[Callable[P, R]], Callable[P, R]]: ...


def on_failure(step: Any = None, *, model: nn.Module | None = None) -> Any:
    """Decorate a training step: the first step whose result or gradient is not finite runs again inside `explain`.

    As long as everything is finite, a step costs one check of its return value and of each gradient before an optimizer
    uses it. If the check finds a NaN or an infinity, the step stops there, and its parameters have not changed. The
    step then runs again inside `explain`, with the same random numbers and the same `.grad` as before. The error that
    is raised contains the report.

    If the loss is not finite but all gradients are, a copy of parameters and states is kept until the step ends. Such a
    step fails only if it returns the loss.

    If the report has a line to paste, the step runs once more with this line, up to the first step of an optimizer. The
    report says what the loss was in this run, or which origin remains.

    If a step has several optimizers, one may change its parameters before another one fails. The first call learns
    which optimizers do this. From the second call on, a copy of their parameters and states is kept until the step
    ends.

    If an optimizer gets a closure, `optimizer.step(closure)`, the gradients are checked after each evaluation of the
    closure. For optimizers that may evaluate the closure more than once, such as `LBFGS`, a copy of parameters and
    states is kept from the first call on. The first evaluation must be finite. A later evaluation that is not finite is
    a failure only if a parameter becomes NaN or infinite, because a line search may reject such an evaluation.

    If the second run raises an error, such as `StopIteration` of an iterator over batches, the report says so, and
    `NotFiniteError` is raised from this error.

    In code that `torch.compile` compiles, a decorated step runs uncompiled. Decorate what is compiled instead:
    `on_failure(torch.compile(step))`.

    If a step changes its parameters by its own code, without an optimizer, it changes them before the check. So from
    the second call on, a copy of these parameters is kept until the step ends.

    If there are several processes, decorate the step on each process. If one gradient is not finite, the average by
    `DistributedDataParallel` is not finite on any process, so all run the step again, and all raise. If a step fails on
    one process only, its second run may wait for the others. This can happen if the loss is not finite but all
    gradients are, or if each process keeps a part of the gradients.

    If the loss and the parameters grew over the steps before the failure, the report begins with these numbers, and
    says that the training run diverged. For this, each step reads the loss after the gradients are checked. It checks
    the parameters before the first step, and while the loss is far above the first loss.

    Args:
        step: a function that runs forward and backward, and may call an optimizer. Its return value is checked.
        model: the model whose buffers, such as the running statistics of a batch norm, are restored before the second
            run.

    Raises:
        NotFiniteError: if a result or a gradient is not finite. The report is in `.report`. A gradient that
            `torch.amp.GradScaler` scaled is not checked, because the scaler itself skips such a step. When the error is
            raised, random numbers, the buffers of `model`, and the dicts among the arguments are as they were before
            the step, and `.grad` is as it was before the first backward pass of the step.
        TypeError: at the decoration, if the step is a generator or a coroutine, because it runs only after it returns.

    Example:
        >>> import torch
        >>> from zero_or_nan import explain
        >>> w = torch.tensor([0.0], requires_grad=True)
        >>> @explain.on_failure
        ... def step(x):
        ...     loss = (w * x).sqrt().sum()
        ...     loss.backward()
        ...     return loss
        >>> try:
        ...     step(torch.ones(1))
        ... except FloatingPointError as error:
        ...     error.report.origins[0].operator
        'sqrt'
    """
    if step is None:
        return partial(on_failure, model=model)
    for is_late in (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction):
        if is_late(step):
            raise TypeError(_LATE.format(name=getattr(step, "__qualname__", step)))

    habits = _Habits()

    @not_compiled
    @functools.wraps(step, updated=())  # by attributes of a compiled step, PyTorch would call it in place of `run`
    def run(*args: Any, **kwargs: Any) -> Any:
        before = Before(model, (args, kwargs))
        watch = _Watch(before, habits, habits.course)
        result = None
        try:
            with watch:
                result = step(*args, **kwargs)
            watch.learn()
            if watch.is_fine(result):
                watch.add_to_course()
                return result
        except _Failed:
            pass
        finally:
            watch.__exit__()  # Ctrl-C may have interrupted the first
        too_early = any(optimizer not in before.optimizers for optimizer in watch.stepped)
        by_hand = habits.by_hand and watch.leaves and not before.values
        loss = watch.loss if watch.loss is not None else loss_among(tensors_in(result))
        before.put_back()
        size = watch.largest()
        error: Exception | None = None
        again, watch_again = Watch(Report()), _Watch(before, habits, Course())
        try:
            with again as report, watch_again:
                step(*args, **kwargs)
        except _Failed:
            pass
        except Exception as raised:  # it must not hide that the first run failed
            error = raised
        finally:
            watch_again.__exit__()
            again.end()
            before.put_back()
        if too_early:
            report.note(
                "an optimizer took its step before the failure was seen, and its parameters are as it left them"
            )
        if by_hand:
            report.note("the step changed its parameters before the failure was seen, and they are as it left them")
        value = None if loss is None else float(loss)
        again.narration.name_cause(habits.course.cause(value, size, report.begins_with_overflow))
        if error is not None:
            report.note(_RAISED_AGAIN.format(error=type(error).__name__))
        elif report.ok and not report.came_from_another_process:
            report.note(_NOT_REPEATED)
        elif not (too_early or by_hand or watch_again.stepped):
            run_with_remedy(report, partial(step, *args, **kwargs), before, habits)
        raise NotFiniteError(report) from error

    return run


def run_with_remedy(report: Report, step: Callable[[], Any], before: Before, habits: _Habits) -> None:
    """Run a step once more, with the remedy of its first origin pasted in, and write the outcome into the report.

    This run ends before an optimizer changes anything. If the line is in no function, the remedy can't be pasted in.
    """
    origin = report.origins[0] if report.origins else None
    if origin is None or origin.replaces is None:
        return
    if in_several_processes():
        origin.again = "the step was not run again with this line: the other processes would have to run it, too"
        return
    line = Pasted(origin.filename, origin.replaces, origin.remedy, origin.until)
    watch, watch_end = Watch(Report()), _Watch(before, habits, Course(), is_trial=True)
    result = None
    try:
        with line.running() as can_run, watch as found, watch_end:
            if can_run:
                result = step()
    except _Failed:
        pass
    except Exception as raised:
        origin.again = f"the step, run again with this line, raised {type(raised).__name__}: {raised}"
        return
    finally:
        watch_end.__exit__()
        watch.end()
        before.put_back()
    if not can_run:
        is_in = "decorates a function" if line.decorates else "is in no function"
        origin.again = f"the step was not run again with this line, which {is_in}"
    elif found.ok and watch_end.is_fine(result):
        loss = watch_end.loss if watch_end.loss is not None else loss_among(tensors_in(result))
        of_loss = "" if loss is None else f"the loss is {number(float(loss))}, and "
        origin.again = f"the step, run again with this line: {of_loss}every gradient is finite"
    elif found.origins:
        after = found.origins[0]
        what = f"{after.kind}: {after.operands or after.operator}, in line {line.line_before(after.line)}"
        origin.again = f"the step, run again with this line, has another origin: {what}"


class _Habits:
    """What earlier calls of a step have shown about its optimizers.

    Attributes:
        early: the optimizers that change parameters before something else in the step can fail.
        by_hand: whether the step changes its parameters itself, without an optimizer.
        course: the loss and the parameters over these calls.
    """

    def __init__(self) -> None:
        self.by_hand = False
        self.course = Course()
        self.early: WeakSet[Optimizer] = WeakSet()


class _Watch:
    """While entered, stops an optimizer before it uses a gradient that is not finite.

    Attributes:
        course: gets the loss of the step, if it is finite.
        stepped: the optimizers that have changed their parameters, as far as is known.
        running: the steps of optimizers that have begun and not ended, the outermost first.
        leaves: the leaves whose gradients a pass has added to.
        is_scaled: whether a loss was scaled.
        loss: the last loss of the step, before it was scaled, if it is known.
        is_doubtful: whether this loss is not finite, although all gradients are. The step fails if it returns the loss.
        is_trial: whether the step ends before an optimizer changes anything.
    """

    def __init__(self, before: Before, habits: _Habits, course: Course, is_trial: bool = False) -> None:
        self.is_trial = is_trial
        self.before = before
        self.habits = habits
        self.course = course
        self.stepped: list[Optimizer] = []
        self.running: list[_Step] = []
        self.thread = home()
        self.leaves: dict[int, Tensor] = {}
        self.is_scaled = False
        self.loss: Tensor | None = None
        self.is_doubtful = False
        self._is_added = False
        self._largest: float | None = None
        self._versions: dict[int, int] = {}

    def __enter__(self) -> None:
        _OPTIMIZERS.add(self)
        replace_engine(self, lambda run: partial(self._run_engine, run))
        replace(self, torch.amp.GradScaler, "scale", self._scale)

    def __exit__(self, *details: object) -> None:
        put_back(self)
        _OPTIMIZERS.remove(self)

    @not_compiled
    def _run_engine(self, run: Any, roots: Any, *args: Any, **kwargs: Any) -> Any:
        if home() == self.thread and kwargs.get("accumulate_grad", True):
            self._begins(roots)
        lead_home()
        return run(roots, *args, **kwargs)

    def _scale(self, scale: Any) -> Any:
        return lambda scaler, outputs: self._scaled(scale, scaler, outputs)

    @not_compiled  # here, and not in each step, which would take longer than the check of the gradients
    def _scaled(self, scale: Any, scaler: Any, outputs: Any) -> Any:
        if home() == self.thread:
            self.is_scaled = self.is_scaled or scaler.is_enabled()
            self.loss = loss_among(tensors_in(outputs))
        return scale(scaler, outputs)

    def _begins(self, roots: Any) -> None:
        if self.stepped:
            self.habits.early.update(self.stepped)
        if not self.is_scaled:
            self.loss = loss_among(roots)
        new = {id(leaf): leaf for _, leaf in leaves_of(graph_from(roots))}
        if self.leaves:
            new = {at: leaf for at, leaf in new.items() if at not in self.leaves}
        self.course.begin(new.values())
        self.before.note(new)
        if self.habits.by_hand:
            self.before.note_values(new)
        else:
            self._versions |= {at: leaf._version for at, leaf in new.items()}
        self.leaves |= new
        if self.habits.by_hand and self._largest is None:
            self._largest = largest(self.leaves.values())

    @not_compiled
    def begin_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        """Check the gradients that an optimizer is about to use. Closures are replaced by others that check them."""
        if home() != self.thread:
            return None
        self.stepped += [step.optimizer for step in self.running if step.optimizer is not optimizer]
        self.habits.early.update(self.stepped)
        given = [*args[1:], *kwargs.values()]
        closures = [thing for thing in given if callable(thing) and not isinstance(thing, nn.Module)]
        step = _Step(self, optimizer, bool(closures))
        if not closures:
            step.check_gradients()
        if optimizer in self.habits.early or closures and not _changes_late(optimizer):
            self.before.note_optimizer(optimizer)
        self.running.append(step)
        if not closures:
            return None
        watched = {id(closure): _Closure(closure, step) for closure in closures}
        args = tuple(watched.get(id(thing), thing) for thing in args)
        return args, {name: watched.get(id(thing), thing) for name, thing in kwargs.items()}

    @not_compiled
    def end_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Check what an optimizer has changed, if it evaluated a closure."""
        steps = [step for step in self.running if step.optimizer is optimizer]
        if home() != self.thread or not steps:
            return
        self.running.remove(steps[-1])
        self.stepped.append(optimizer)
        steps[-1].end()

    def learn(self) -> None:
        """Find out whether the step has changed parameters itself."""
        if not (self.stepped or self.habits.by_hand) and any(
            leaf._version != self._versions[at] for at, leaf in self.leaves.items()
        ):
            self.habits.by_hand = True

    def add_to_course(self) -> None:
        """Keep the loss of the step, once: its gradients are finite, and no optimizer has used them yet."""
        if self.loss is None or self._is_added:
            return
        self._is_added = True
        loss = float(self.loss)
        if math.isfinite(loss):
            self.course.add(loss, self.largest)
        else:
            self.is_doubtful = True
            self._largest = self.largest()  # the optimizer may take its step before the loss is checked

    def largest(self) -> float | None:
        """The largest absolute value among the parameters, before the step changed them."""
        return largest(self.leaves.values()) if self._largest is None else self._largest

    def is_fine(self, result: Any) -> bool:
        """Whether the step returned finite numbers, and left finite gradients if no optimizer has checked them."""
        unchecked = () if self.stepped or self.is_scaled else self.leaves.values()
        gradients = [grad for leaf in unchecked if (grad := leaf.grad) is not None]
        return are_finite_at_once((*tensors_in(result), *gradients)) and all(map(math.isfinite, each_in(result, float)))


class _Optimizers:
    """Tells all watches of the steps of all optimizers.

    PyTorch iterates over its hooks while they run, so a thread must not add or remove one during another one's step.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._watches: list[_Watch] = []
        self._handles: tuple[Any, ...] = ()

    def add(self, watch: _Watch) -> None:
        with self._lock:
            self._watches = [*self._watches, watch]
            if not self._handles:
                begin, end = register_optimizer_step_pre_hook, register_optimizer_step_post_hook
                self._handles = begin(self._begin), end(self._end)

    def remove(self, watch: _Watch) -> None:
        with self._lock:
            self._watches = [each for each in self._watches if each is not watch]
            if not self._watches:
                for handle in self._handles:
                    handle.remove()
                self._handles = ()

    def _begin(self, optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any]:
        for watch in self._watches:
            args, kwargs = watch.begin_step(optimizer, args, kwargs) or (args, kwargs)
        return args, kwargs

    def _end(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        for watch in self._watches:
            watch.end_step(optimizer, args, kwargs)


_OPTIMIZERS = _Optimizers()


class _Step:
    """A step of an optimizer, which may evaluate a closure any number of times.

    Attributes:
        evaluations: the number of evaluations that have begun.
        is_doubtful: whether a gradient was not finite after a later evaluation, which a line search may reject.
    """

    def __init__(self, watch: _Watch, optimizer: Optimizer, has_closure: bool) -> None:
        self.watch = watch
        self.optimizer = optimizer
        self.has_closure = has_closure
        self.evaluations = 0
        self.is_doubtful = False

    def check_gradients(self) -> None:
        # A scaler gives a fused optimizer this attribute, by which the optimizer skips such a step itself.
        is_bad = getattr(self.optimizer, "found_inf", None) is None and not self._has_finite_gradients()
        if is_bad or self.watch.is_trial:
            raise _Failed
        self.watch.add_to_course()
        if self.watch.is_doubtful:
            self.watch.before.note_optimizer(self.optimizer)

    def evaluate(self, closure: Callable[[], Any]) -> Any:
        """Evaluate the user's closure, and check the gradients that it leaves."""
        if self.evaluations or not _changes_late(self.optimizer):
            self.watch.stepped.append(self.optimizer)
        self._check_parameters()
        self.evaluations += 1
        result = closure()
        if self.evaluations == 1:
            self.check_gradients()
        elif not self._has_finite_gradients():
            self.is_doubtful = True
        return result

    def end(self) -> None:
        if not self.has_closure:
            return
        if not self.evaluations:
            self.check_gradients()
        self._check_parameters()

    def _has_finite_gradients(self) -> bool:
        return are_finite_at_once(grad for p in parameters_of(self.optimizer) if (grad := p.grad) is not None)

    def _check_parameters(self) -> None:
        """Whether the optimizer used a gradient that was not finite."""
        if self.is_doubtful and not are_finite_at_once(parameters_of(self.optimizer)):
            raise _Failed


class _Closure:
    """What an optimizer gets in place of the user's closure: the same, but the step checks each evaluation."""

    def __init__(self, closure: Callable[..., Any], step: _Step) -> None:
        self._closure = closure
        self._step = step

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._step.evaluate(partial(self._closure, *args, **kwargs))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._closure, name)


def _changes_late(optimizer: Optimizer) -> bool:
    """Whether an optimizer is known to evaluate its closure once, before it changes a parameter."""
    is_pytorchs = type(optimizer).step.__module__.startswith("torch.optim.")
    return is_pytorchs and not isinstance(optimizer, torch.optim.LBFGS)
