"""The shadow of a backward pass: the same pass, run by `ignoring` beforehand, in a sandbox.

The shadow shows what the loss ignores, and whether gradients exist. The sandbox hides the shadow from the user's
program. The user's hooks do not run in it. Code that a checkpoint runs again may count batches or keep averages, so the
sandbox restores buffers, and the `.grad` of tensors inside the graph. It also restores the cache of a selective
checkpoint. If a checkpoint enters any other context for its second run, the extra pass ends there.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from copy import copy
from typing import Any

import torch
from torch import Tensor
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.autograd.graph import GradientEdge
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack, _pop_mode, _push_mode
from torch.utils import checkpoint

from ...ignoring.inside import (
    Edge,
    Graph,
    any_of,
    edge_of,
    forward_class,
    functions_unseen,
    graph_from,
    is_checkpoint,
    is_leaf,
    is_unknown,
    leaves_of,
    never_traced,
    not_compiled,
    pass_over,
    tree_map,
)
from ..births.diagnosis import Shadow
from ..births.findings import Scope, runs_hook
from ..program.code import buffers_of, is_recomputed, plan_of
from ..program.rerun import extra, is_extra, without_side_effects
from ..program.tensors import are_finite, in_several_processes, numbers_of, tensors_in, unseen

function_modes = _get_current_function_mode_stack
"""The modes for functions that are on in this thread. The top of the stack comes last."""

functions_seen = torch._C._EnableTorchFunction
"""A context in which the modes for functions see calls, even inside `unseen`."""


class OnStack(TorchFunctionMode):
    """A mode for functions that may leave the stack of modes from any position."""

    def is_on(self) -> bool:
        """Whether this mode sees the next call."""
        return self in function_modes()

    def is_on_top(self) -> bool:
        """Whether no other mode sees the next call before this one."""
        return function_modes()[-1:] == [self]

    def leave(self) -> None:
        """Leave from any position in the stack, because blocks in generators end in any order, and in any thread.

        After Ctrl-C, this mode may be in the stack twice, because PyTorch puts it back after each call.
        """
        above = []
        while self.is_on():
            mode = _pop_mode()
            if mode is not self:
                above.append(mode)
        for mode in reversed(above):
            _push_mode(mode)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """While entered, this mode is off the stack, if it was on top."""
        is_top = self.is_on_top()
        if is_top:
            _pop_mode()
        try:
            yield
        finally:
            if is_top:
                _push_mode(self)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """While entered, this is the only mode, because the user's modes must not see code that runs a second time."""
        others = [_pop_mode() for _ in function_modes()]
        try:
            with functions_seen(), self:
                yield
        finally:
            for mode in reversed(others):
                _push_mode(mode)


def shadow_of(
    roots: Sequence[Any],
    vectors: Sequence[Any],
    inputs: Sequence[Any],
    graph: Graph,
    keep: Sequence[Edge],
    unsafe: Sequence[Any],
    undoing: Undoing,
) -> Shadow | None:
    """The outcome of a pass of `ignoring` over a graph; None if it could not be run.

    `.grad`, random numbers and the graph stay unchanged.

    Args:
        roots, vectors, inputs: as in the pass itself.
        keep: the edges whose masks are requested.
        unsafe: the nodes from which ignored elements may come out with other values than 0.
        undoing: the `Undoing` of the sandbox in which the pass runs.
    """
    if any(map(_may_run_only_once, graph)):
        return None
    edges: list[Edge] = [(node, 0) for node, _ in leaves_of(graph)]
    edges += [edge for edge in map(edge_of, inputs) if edge is not None and not is_leaf(edge[0])]
    if not edges:
        return None
    shadow = Shadow(graph)
    running = pass_over(roots, graph, [*keep, *edges], unsafe, shadow)
    shadow.masks = running.masks
    try:
        with without_side_effects(), running:
            undoing.set_aside(graph)
            if any(is_checkpoint(node) for node in graph):  # a reentrant checkpoint refuses to work for `grad`
                undoing.has_passes_inside = True
                torch.autograd.backward(roots, vectors, retain_graph=True)
                grads = {at: leaf.grad for at, (leaf, _) in undoing.leaves.items()}
                shadow.leaves = {at: grad is None or are_finite(grad) for at, grad in grads.items()}
                shadow.zeros = {at for at, grad in grads.items() if _is_zero(grad)}
            else:
                asked = [GradientEdge(node, output) for node, output in edges]
                gradients = torch.autograd.grad(roots, asked, vectors, retain_graph=True, allow_unused=True)
                shadow.edges = dict(zip(edges, map(are_finite, gradients), strict=True))
                shadow.zeros = {edge for edge, grad in zip(edges, gradients, strict=True) if _is_zero(grad)}
    except Exception:
        return None
    shadow.let_go()
    return shadow


def _is_zero(gradient: Tensor | None) -> bool:
    here = None if gradient is None else numbers_of(gradient)
    return here is not None and not any_of(here != 0)


def _may_run_only_once(node: Any) -> bool:
    """Whether a node is a derivative in Python that may free what it saved, or talk to other processes.

    A hook of the user's on saved tensors may free them, too.
    """
    if runs_hook(node):
        return True
    forward = forward_class(node)
    if forward is None:
        return False
    if in_several_processes():
        return True  # other processes do not run a shadow, so it would wait for them forever
    if forward.__module__ == "torch.cuda.graphs":
        return True  # a graph that was captured writes over what its forward pass saved
    return not forward.__module__.startswith("torch.") and is_unknown(node)


# The sandbox in which an extra pass runs.

_OURS = f"{__package__.rpartition('.')[0]}."


class Sandbox:
    """The sandbox of one watch."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._retaining: dict[int, weakref.ref[Tensor]] = {}
        self._undoing: Undoing | None = None

    @property
    @never_traced
    def is_entered(self) -> bool:
        """Whether an extra pass is running."""
        return self._undoing is not None

    @contextmanager
    def entered(self, recomputes: bool) -> Iterator[Undoing]:
        """While entered, passes are extra passes.

        Args:
            recomputes: whether a checkpoint may run code again. If so, every function call is watched, including those
                of `ignoring`, which takes as long as `ignoring` itself.
        """
        outer = self._undoing
        retaining = [tensor for tensor in (known() for known in self._retaining.values()) if tensor is not None]
        self._undoing = undoing = Undoing(retaining, recomputes)
        try:
            with extra():
                yield undoing
        finally:
            self._undoing = outer
            undoing.undo()

    def run(self, run: Callable[..., Any], roots: Any, *args: Any, **kwargs: Any) -> Any:
        """Run PyTorch's engine for an extra pass."""
        assert self._undoing is not None
        if self._undoing.has_passes_inside:
            self._undoing.set_aside(graph_from(roots))
        with self._undoing.on(), _in_no_group():
            return run(roots, *args, **kwargs)

    @not_compiled
    def begin_again(self, frame: Any) -> None:
        """A checkpoint is about to run its code again."""
        if self._undoing is not None and self._undoing.is_on():
            again = frame.recompute_fn
            cells = dict(zip(again.__code__.co_freevars, again.__closure__ or (), strict=True))
            context = cells.get("recompute_context")
            self._undoing.begin_again(None if context is None else context.cell_contents)

    def prepared(self, func: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The arguments with which to call `Tensor.register_hook` or `Tensor.retain_grad`."""
        if func is Tensor.retain_grad:
            self.retains(*args)
            return args, kwargs
        tensor, *hooks = args
        return (tensor, *map(self.silenced, hooks)), {name: self.silenced(hook) for name, hook in kwargs.items()}

    def retains(self, tensor: Tensor) -> None:
        """Note that a tensor inside a graph keeps its gradient."""
        at = id(tensor)
        self._retaining[at] = weakref.ref(tensor, lambda _: self._retaining.pop(at, None))

    @not_compiled
    def silenced(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        """The user's hook, wrapped so that it does not run in an extra pass. This package's own hooks always run."""
        function = hook.func if isinstance(hook, functools.partial) else hook
        is_ours = is_extra() or (getattr(function, "__module__", None) or "").startswith(_OURS)
        if self.is_entered or is_ours or not self._scope.is_here():
            return hook

        @never_traced
        def run(*args: Any, **kwargs: Any) -> Any:
            return None if self.is_entered else hook(*args, **kwargs)

        with contextlib.suppress(AttributeError, TypeError):  # a callable of any kind
            functools.update_wrapper(run, hook)
        return run


class Undoing(OnStack):
    """While it is on, remembers the tensors that a checkpoint writes to. `retaining` are tensors inside a graph that
    keep their gradients.

    Attributes:
        leaves: by identity, the leaves that are set aside, with their `.grad`.
        has_passes_inside: whether a checkpoint starts passes inside the extra pass. Their leaves are set aside, too.
    """

    def __init__(self, retaining: Iterable[Tensor], recomputes: bool) -> None:
        super().__init__()
        self.recomputes = recomputes
        self.has_passes_inside = False
        self.leaves: dict[int, tuple[Tensor, Tensor | None]] = {}
        self.hooks: list[tuple[Any, list[tuple[Any, Any]]]] = []
        self.kept: dict[int, tuple[Tensor, Tensor]] = {}
        self.caches: dict[int, tuple[Any, dict[Any, Any]]] = {}
        with unseen():
            self.grads = [(tensor, tensor.grad) for tensor in retaining]

    @contextmanager
    def on(self) -> Iterator[None]:
        """While entered, the code of a checkpoint is watched. A pass inside a pass does not push this mode again."""
        if not self.recomputes:
            yield
            return
        with functions_seen(), nullcontext() if self.is_on() else self:
            yield

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with functions_unseen():  # the user's modes must not see an extra pass
            written = buffers_of(func, args, kwargs) or (args[:1] if plan_of(func).in_place else ())
            if written and is_recomputed():
                self._keep(written)
            return func(*args, **kwargs)

    def set_aside(self, graph: Graph) -> None:
        """Remove `.grad` and the hooks from the leaves of a graph."""
        for _, leaf in leaves_of(graph):
            if id(leaf) not in self.leaves:
                self.leaves[id(leaf)] = leaf, leaf.grad
                leaf.grad = None
                for hooks in (leaf._backward_hooks, leaf._post_accumulate_grad_hooks):
                    if hooks:
                        self.hooks.append((hooks, list(hooks.items())))
                        hooks.clear()

    def begin_again(self, context: Any) -> None:
        """Prepare for the context that a checkpoint enters while its code runs again.

        Raises:
            RuntimeError: if the context is neither empty nor a cache, because it may count, or allow only one entry.
        """
        if isinstance(context, nullcontext):
            return
        if not isinstance(context, checkpoint._CachedTorchDispatchMode) or _asks_the_user(context):
            raise RuntimeError(f"{type(context).__name__} may allow only one pass")
        cache = context.storage
        if id(cache) not in self.caches:
            self.caches[id(cache)] = cache, dict(cache)
            cache.update({key: _twins(entries) for key, entries in cache.items()})

    def _keep(self, tensors: Any) -> None:
        for tensor in tensors_in(tensors):
            if tensor.grad_fn is None and id(tensor) not in self.kept:
                self.kept[id(tensor)] = tensor, tensor.detach().clone()

    def undo(self) -> None:
        """Restore everything."""
        with unseen(), torch.no_grad():
            for tensor, grad in (*self.grads, *self.leaves.values()):
                tensor.grad = grad
            for hooks, items in self.hooks:
                hooks.update(items)
            for tensor, value in self.kept.values():
                with _unsafe_preserve_version_counter(tensor):
                    tensor.copy_(value)
            for cache, entries in self.caches.values():
                cache.clear()
                cache.update(entries)


def _asks_the_user(mode: checkpoint._CachedTorchDispatchMode) -> bool:
    """Whether a cache calls a policy of the user's in backward, which may count its calls. Older releases do so."""
    policy = getattr(mode, "policy_fn", None)
    return policy is not None and policy.__module__ != checkpoint.__name__


def _twins(entries: Any) -> Any:
    """The same numbers in other tensors: those that a checkpoint takes out of a cache become a part of its graph."""

    def twin(entry: Any) -> Any:
        if not isinstance(entry, checkpoint._VersionWrapper):
            return entry
        other = copy(entry)
        if isinstance(entry.val, Tensor):
            other.val = entry.val.detach()
        return other

    with unseen():
        return tree_map(twin, entries)


@contextmanager
def _in_no_group() -> Iterator[None]:
    """While entered, a pass is in no group of passes that a checkpoint runs its code for only once."""
    group = _group()
    if group is None:
        yield
        return
    torch._C._set_graph_exec_group(None)
    try:
        yield
    finally:
        torch._C._set_graph_exec_group(group)


_group: Callable[[], Any] = getattr(torch._C, "_get_graph_exec_group", lambda: None)
"""The current group of backward passes. Newer releases of PyTorch have such groups."""
