"""A training step that is explained when it fails: until then it costs a look at the loss and the gradients."""

from __future__ import annotations

import functools
import random
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar, overload
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch._C._nn import flatten_dense_tensors
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from ..ignoring.lifetimes import held_from
from ..ignoring.looks import total
from ..replacing import put_back, replace
from .arithmetic import on_copies
from .report import NotFiniteError
from .shadow import leaves_of
from .traces import each_in, is_finite, looked_at, tensors_in

P = ParamSpec("P")
R = TypeVar("R")


_SMALL = 10_000
"""Entries up to which tensors are looked at together."""


class _Failed(BaseException):
    """Ends a step whose gradient is not finite, before its optimizer can use it."""


@overload
def on_failure(step: Callable[P, R], *, model: nn.Module | None = None) -> Callable[P, R]: ...
@overload
def on_failure(step: None = None, *, model: nn.Module | None = None) -> Callable[[Callable[P, R]], Callable[P, R]]: ...


def on_failure(step: Any = None, *, model: nn.Module | None = None) -> Any:
    """Run a training step, and on the first that is not finite run that step again, watched.

    While all is well, a step costs one look at what it returns and at each gradient, before an optimizer uses it. When
    one of them is not finite, the step is stopped there: its parameters are what they were. It runs again inside of
    `explain`, with the random numbers and the `.grad` of before, and the error that is raised has the report. Where a
    step has several optimizers, the first call tells which of them go before others, and from the second call on their
    parameters and states are kept until the step is through.

    Args:
        step: a function that runs forward and backward, and may call an optimizer. What it returns is looked at.
        model: whose buffers to put back before the second run: the running statistics of a batch norm.

    Raises:
        NotFiniteError: when a result or a gradient is not finite, with the report in `.report`. A gradient that
            `torch.amp.GradScaler` scaled is left to it, which skips such a step.

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
        return functools.partial(on_failure, model=model)

    early: WeakSet[Optimizer] = WeakSet()

    @functools.wraps(step)
    def run(*args: Any, **kwargs: Any) -> Any:
        before = _Before(model)
        watch = _Watch(before, early)
        try:
            with watch:
                result = step(*args, **kwargs)
            if watch.is_fine(result):
                return result
        except _Failed:
            pass
        too_early = any(optimizer not in before.optimizers for optimizer in watch.stepped)
        before.put_back()
        from .block import explain

        with explain() as report:
            try:
                with _Watch(before, early):
                    step(*args, **kwargs)
            except _Failed:
                pass
        before.put_back()
        if too_early:
            report.note(
                "an optimizer took its step before the failure was seen, and its parameters are as it left them"
            )
        if report.ok:
            report.note(
                "the step was not finite, and when it ran again, watched, it was: what happened does not repeat itself"
            )
        raise NotFiniteError(report)

    return run


class _Before:
    """What a step changes, as it was before."""

    def __init__(self, model: nn.Module | None) -> None:
        self.torch = torch.get_rng_state()
        self.cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        self.python = random.getstate()
        numpy = sys.modules.get("numpy")
        self.numpy = numpy.random.get_state() if numpy is not None else None
        self.buffers = [] if model is None else [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
        self.grads: dict[int, tuple[Tensor, Tensor | None, Tensor | None]] = {}
        self.optimizers: dict[Optimizer, tuple[list[tuple[Tensor, Tensor]], dict[Tensor, dict[str, Any]]]] = {}

    def note(self, leaf: Tensor) -> None:
        """The `.grad` of a leaf, before the first pass adds to it."""
        if id(leaf) not in self.grads:
            grad = leaf.grad
            self.grads[id(leaf)] = leaf, grad, None if grad is None else grad.detach().clone()

    def note_optimizer(self, optimizer: Optimizer) -> None:
        """The parameters of an optimizer and its state, before it takes a step that may turn out to be too early."""
        if optimizer not in self.optimizers:
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            values = [(p, p.detach().clone()) for p in parameters]
            self.optimizers[optimizer] = values, {p: on_copies(optimizer.state[p]) for p in list(optimizer.state)}

    def put_back(self) -> None:
        torch.set_rng_state(self.torch)
        if self.cuda:
            torch.cuda.set_rng_state_all(self.cuda)
        random.setstate(self.python)
        if self.numpy is not None:
            sys.modules["numpy"].random.set_state(self.numpy)
        with torch.no_grad():
            for buffer, value in self.buffers:
                buffer.copy_(value)
            for leaf, grad, kept in self.grads.values():
                if grad is not None and kept is not None:
                    grad.copy_(kept)
                leaf.grad = grad
            for optimizer, (values, states) in self.optimizers.items():
                for parameter, value in values:
                    parameter.copy_(value)
                optimizer.state.clear()
                optimizer.state.update({parameter: on_copies(state) for parameter, state in states.items()})


class _Watch:
    """While entered, an optimizer is stopped that would use a gradient that is not finite."""

    def __init__(self, before: _Before, early: WeakSet[Optimizer]) -> None:
        self.before = before
        self.early = early
        self.stepped: list[Optimizer] = []
        self.thread = threading.get_ident()
        self.leaves: dict[int, Tensor] = {}
        self.is_scaled = False

    def __enter__(self) -> None:
        self.handle = register_optimizer_step_pre_hook(self._steps)
        for module in (torch.autograd, torch.autograd.graph):
            replace(self, module, "_engine_run_backward", self._engine)
        replace(self, torch.amp.GradScaler, "scale", self._scale)

    def __exit__(self, *details: object) -> None:
        put_back(self)
        self.handle.remove()

    def _engine(self, run: Any) -> Any:
        def run_engine(roots: Any, *args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() == self.thread and kwargs.get("accumulate_grad", True):
                self._begins(roots)
            return run(roots, *args, **kwargs)

        return run_engine

    def _scale(self, scale: Any) -> Any:
        def scaled(scaler: Any, outputs: Any) -> Any:
            if threading.get_ident() == self.thread:
                self.is_scaled = self.is_scaled or scaler.is_enabled()
            return scale(scaler, outputs)

        return scaled

    def _begins(self, roots: Any) -> None:
        self.early.update(self.stepped)
        for _, leaf in leaves_of(held_from(roots)):
            if id(leaf) not in self.leaves:
                self.leaves[id(leaf)] = leaf
                self.before.note(leaf)

    def _steps(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if threading.get_ident() != self.thread:
            return
        self.early.update(self.stepped)
        if not all_finite(p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None):
            raise _Failed
        if optimizer in self.early:
            self.before.note_optimizer(optimizer)
        self.stepped.append(optimizer)

    def is_fine(self, result: Any) -> bool:
        """Whether what a step returned is finite, and what it left in `.grad`, where no optimizer looked at it."""
        if not all_finite(tensors_in(result)) or not all(number - number == 0 for number in each_in(result, float)):
            return False
        if self.stepped or self.is_scaled:
            return True
        return all_finite(leaf.grad for leaf in self.leaves.values() if leaf.grad is not None)


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether all entries of all tensors are; fetched from their device at once."""
    usual: list[Tensor] = []
    others: list[Tensor] = []
    for tensor in tensors:
        if (
            type(tensor) is Tensor
            and tensor.dtype is torch.float32
            and tensor.is_cpu
            and tensor.layout is torch.strided
        ):
            usual.append(tensor)
        else:
            here = looked_at(tensor)
            if here is not None:
                others.append(torch.view_as_real(here) if here.is_complex() else here)
    if not usual and not others:
        return True
    with torch.no_grad():
        totals = [tensor.sum() for tensor in usual if tensor.numel() > _SMALL]
        small = [tensor for tensor in usual if tensor.numel() <= _SMALL]
        if small:  # most of their time goes into calling PyTorch
            totals.append(flatten_dense_tensors(small).sum())
        if others:
            first = others[0].device
            wide = [total(tensor).to(first, torch.float64) for tensor in others]
            totals.append(torch.stack(wide).sum())
        is_fine = all((number := each.item()) - number == 0 for each in totals)
    return is_fine or all(is_finite(tensor) for tensor in (*usual, *others))
