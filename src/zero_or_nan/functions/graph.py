"""The graph that backward goes through: its nodes, the forward function behind each, and how a deep graph is freed.

In newer releases of PyTorch, a node that Python has seen is freed inside its predecessor. If Python has walked along a
chain of some ten thousand nodes, dropping the chain overflows the stack. `DEEP_GRAPHS` holds such nodes, so that no
node is freed inside another. At the next garbage collection or pass, it frees the nodes that nothing else holds.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import re
import sys
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge, get_gradient_edge

from ..masks.mask import Mask, everywhere

_functions: Any = torch._C._functions

AccumulateGrad: type = _functions.AccumulateGrad

Edge = tuple[Any, int]
"""A node ahead, and the number of the cotangent that it gets."""

Graph = dict[Any, Sequence[Edge]]
"""Nodes that backward runs, with their edges. Along a chain, the order is from the root on.

If only some gradients are asked for, a node may be ahead of an edge here, and is not run. It is then not in the graph.
"""


def edge_of(tensor: Any) -> Edge | None:
    """The edge at which the gradient of a tensor or graph edge arrives; None if it has no gradient."""
    if isinstance(tensor, Tensor) and tensor.requires_grad:
        with torch.inference_mode(False):  # inside inference mode, PyTorch gives no edge of a leaf
            tensor = get_gradient_edge(tensor)
    return (tensor.node, tensor.output_nr) if isinstance(tensor, GradientEdge) else None


def graph_from(roots: Sequence[Any], runs: Callable[[Any], bool] | None = None) -> Graph:
    """Every node that backward can reach from the roots, which are tensors or graph edges.

    If a function `runs` is given, the walk leaves out each node for which it is False, and all behind that node.
    """
    stack = [getattr(root, "grad_fn", None) or getattr(root, "node", None) for root in roots]
    graph: Graph = {}
    while stack:
        node = stack.pop()
        if node is None or node in graph or runs is not None and not runs(node):
            continue
        graph[node] = edges = node.next_functions
        for ahead, _ in edges:
            if ahead is not None:
                stack.append(ahead)
    return graph


def senders_of(graph: Graph) -> dict[Any, list[Edge]]:
    """By node, the nodes whose gradients arrive there, each with the number of the cotangent."""
    senders: dict[Any, list[Edge]] = {}
    for node, edges in graph.items():
        for ahead, number in edges:
            senders.setdefault(ahead, []).append((node, number))
    return senders


def leaves_of(graph: Graph) -> Iterator[tuple[Any, Tensor]]:
    """The nodes that add to the `.grad` of a leaf, with the leaf."""
    nodes: Iterator[Any] = (node for node in graph if type(node) is AccumulateGrad)
    return ((node, node.variable) for node in nodes)


def run(node: Any, *cotangents: Any) -> tuple[Any, ...]:
    """Run a node's derivative on cotangents."""
    results: Any = (node.apply if isinstance(node, BackwardCFunction) else node)(*cotangents)
    return results if isinstance(results, tuple) else (results,)


def for_each_edge(node: Any, results: Any) -> list[Any]:
    """The results of a node's derivative, one for each edge. A Function in Python returns one for each argument."""
    each: list[Any] = list(results) if isinstance(results, (tuple, list)) else [results]
    if isinstance(node, BackwardCFunction):
        wanted = iter([result for result, needed in zip(each, node.needs_input_grad, strict=False) if needed])
        return [None if ahead is None else next(wanted, None) for ahead, _ in node.next_functions]
    return each


def forward_class(node: Any) -> Any:
    """The subclass of `autograd.Function` that a node runs the backward of; None for a node of PyTorch's in C++."""
    return getattr(node, "_forward_cls", None)


def is_region(node: Any) -> bool:
    """True if a node is the backward of a compiled region."""
    forward = getattr(node, "_forward_cls", None)  # no call of `forward_class`: explain asks this of each node
    return forward is not None and _is_of_region(forward)


def regions_exist() -> bool:
    """True if a function was compiled whose backward is a region. If not, no graph needs to be searched for one."""
    return any(map(_is_of_region, torch.autograd.Function.__subclasses__()))


def _is_of_region(forward: type) -> bool:
    return forward.__name__ == "CompiledFunction" and forward.__module__.startswith("torch.")


@functools.cache
def function_of(name: str) -> str:
    """The forward function of a node, by the node's name.

    >>> function_of("MaskedFillBackward0"), function_of("torch::autograd::CopySlices")
    ('MaskedFill', 'CopySlices')
    """
    name = name.rpartition("::")[2]
    found = re.fullmatch(r"(\w+)Backward\d+(_copy)?", name)
    return found[1] if found else name


def has_empty_result(node: Any) -> bool:
    """True if a result of the forward function has no elements: it then depends on no element of the arguments."""
    return any(not metadata.is_nested_tensor and 0 in metadata.shape for metadata in node._input_metadata)


def signed(number: Any) -> Any:
    """A dimension or index with its sign: the nodes' Python attributes show -1 as 2**64 - 1. None stays None."""
    return number - (1 << 64) if number is not None and number >= 1 << 63 else number


engine_run: Callable[[], int] = torch._C._current_graph_task_id
"""The number of the run of PyTorch's engine that this thread works for; -1 outside of all runs."""


engine: Any = torch.autograd.Variable._execution_engine
"""PyTorch's engine."""

_LEAF = torch.zeros((), requires_grad=True, device="cpu")
_here = threading.local()


@functools.cache
def _add_hook() -> None:
    """Let runs to the leaf note their number. Not at import: it changes no count in PyTorch."""
    _LEAF.register_hook(lambda gradient: setattr(_here, "run", engine_run()))  # type: ignore[no-untyped-call]


def runs_of_the_engine() -> int:
    """How many runs PyTorch's engine has begun, in all threads. To find out, this function starts one, which counts."""
    _add_hook()
    engine.run_backward((_LEAF,), (_LEAF.detach(),), False, False, (_LEAF,), True, False)
    return _here.run  # type: ignore[no-any-return]


TELLS_OF_HOOKS = hasattr(torch.autograd.SavedTensor, "unpack_hook")  # type: ignore[attr-defined]
"""Whether PyTorch shows which saved tensors have hooks. It does from 2.10 on."""


def can_be_read_again(node: Any, unknown: bool) -> bool:
    """True if reading the saved tensors runs no hook, which would compute them again or fetch them from elsewhere.

    Args:
        node: the node that saved them.
        unknown: the answer if PyTorch does not show the hooks, as before 2.10.
    """
    return all(part.unpack_hook is None if hasattr(part, "unpack_hook") else unknown for part in _packed(node))


def hooks_of(node: Any) -> list[Callable[..., Any]]:
    """The hooks that run if the saved tensors of a node are read; none before 2.10, which does not show them."""
    return [hook for part in _packed(node) if (hook := getattr(part, "unpack_hook", None)) is not None]


def _packed(node: Any) -> list[Any]:
    """The tensors that a node saved, in packed form."""
    saved = [getattr(node, name) for name in _saved_by(node.__class__)]
    return [part for part in saved for part in (part if isinstance(part, (tuple, list)) else (part,))]


@functools.cache
def _saved_by(node_type: type) -> list[str]:
    """The attributes that have a node's saved tensors in packed form: reading them runs no hook."""
    return [name for name in dir(node_type) if name.startswith("_raw_saved_")]


def read_saved(node: Any, name: str) -> Any:
    """A tensor that a node saved, by its name; None if it was freed, or a hook would fetch it or compute it again."""
    with contextlib.suppress(RuntimeError):
        if getattr(getattr(node, f"_raw_saved_{name}"), "unpack_hook", None) is None:
            return getattr(node, f"_saved_{name}")
    return None


def came_as_nan(node: Any, result: Tensor) -> Mask:
    """The elements at which a node's input was NaN, or may have been; None if none was, or if no input was saved."""
    if not hasattr(type(node), "_saved_self"):
        return None
    saved = read_saved(node, "self")
    if saved is None:  # only a hook can fetch it
        return everywhere(True, result)
    found = saved.isnan() if isinstance(saved, Tensor) and saved.shape == result.shape else None
    return None if found is None or not bool(found.any()) else found


def saved_tensors(node: Any, unknown: bool = False) -> Iterator[Tensor]:
    """The tensors that a node saved, if reading them runs no hook.

    Args:
        node: the node that saved them.
        unknown: whether to read a tensor of which PyTorch, before 2.10, does not show whether it has a hook.
    """
    no_hook = None if unknown else 0
    is_python = isinstance(node, BackwardCFunction)
    for name in _saved_by(node.__class__):
        with contextlib.suppress(RuntimeError):  # freed, or changed in place
            packed = getattr(node, name)
            parts = packed if isinstance(packed, (tuple, list)) else (packed,)
            if all(getattr(part, "unpack_hook", no_hook) is None for part in parts):
                saved = node.saved_tensors if is_python else getattr(node, name.removeprefix("_raw"))
                yield from (part for part in (saved if isinstance(saved, tuple) else (saved,)) if part is not None)


NODES = frozenset(
    function_of(name)
    for name in dir(_functions)
    if "Backward" in name or name in ("AccumulateGrad", "CopySlices", "DelayedError", "UndefinedGrad")
)
"""The forward functions whose nodes are PyTorch's own. All other nodes run unknown code, or raise an error."""

KINDS = frozenset(
    kind
    for name, kind in vars(_functions).items()
    if name == "AccumulateGrad" or re.fullmatch(r"\w+Backward\d+(_copy)?", name)
)
"""The types of nodes that belong to one forward function each."""


DEEP = 1000
"""From this number of nodes on, a graph may be too deep to be freed recursively."""

SOME = 499
"""One in so many of the nodes that are seen one by one is held. A prime, because loops have other lengths."""


class _DeepGraphs:
    """Holds the nodes of deep graphs, each once, until nothing else holds them."""

    def __init__(self) -> None:
        self._held: list[deque[Any]] = []
        self._known: set[int] = set()
        self._seen = 0
        self._sweeping = False
        self._lock = threading.RLock()

    def hold(self, graph: Collection[Any]) -> None:
        """Hold the nodes of a graph, ordered from the roots on, until nothing else holds them."""
        if len(graph) < DEEP or not _keeps_its_object():
            return
        with self._lock:
            nodes = deque(node for node in graph if id(node) not in self._known)
            if nodes:
                self._keep(nodes)

    def _keep(self, nodes: deque[Any]) -> None:
        if not self._held:
            gc.callbacks.append(self._collected)
        self._known.update(map(id, nodes))
        self._held.append(nodes)

    def saw(self, node: Any) -> None:
        """Note that Python has seen a new node. Some of these nodes are held, so no chain of them is freed too deep."""
        self._seen += 1
        if self._seen % SOME or not _keeps_its_object():
            return
        self.sweep()
        with self._lock:
            if id(node) not in self._known:
                self._keep(deque([node]))

    def sweep(self) -> None:
        """Free the nodes that nothing else holds. A graph is alive as long as something holds its first node."""
        if not self._held or not self._lock.acquire(blocking=False):
            return
        try:
            if not self._sweeping:  # freeing a node may run the user's code, which may call this again
                try:
                    self._sweeping = True
                    self._let_go()
                finally:  # Ctrl-C may have ended it
                    self._sweeping = False
        finally:
            self._lock.release()

    def _let_go(self) -> None:
        for nodes in filter(_is_free, self._held[::-1]):  # later graphs hold nodes of earlier ones
            alive: deque[Any] = deque()
            try:
                while nodes:
                    node = nodes.popleft()
                    if sys.getrefcount(node) > _FREE:
                        alive.append(node)
                    else:
                        self._known.discard(id(node))
                    del node  # frees it here, while its successors are still held
            finally:
                nodes.extend(alive)
        self._held[:] = [nodes for nodes in self._held if nodes]
        if not self._held and self._collected in gc.callbacks:
            gc.callbacks.remove(self._collected)

    def forked(self) -> None:
        """Renew the lock in a forked process: a thread that held it does not exist there."""
        self._lock, self._sweeping = threading.RLock(), False

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        """The callback of the garbage collector."""
        if phase == "stop" and any(map(_is_free, self._held)):
            self.sweep()


def _is_free(nodes: deque[Any]) -> bool:
    """True if nothing else holds the first of these nodes."""
    return bool(nodes) and sys.getrefcount(nodes[0]) <= _FREE


_FREE = 2
"""The number of references to a node if only a local variable or a container, and the call that counts, hold it."""

DEEP_GRAPHS = _DeepGraphs()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=DEEP_GRAPHS.forked)


def held_from(roots: Sequence[Any]) -> Graph:
    """Every node that backward can reach from the roots. Deep graphs are held until nothing else holds them."""
    DEEP_GRAPHS.sweep()
    graph = graph_from(roots)
    DEEP_GRAPHS.hold(graph)
    return graph


@functools.cache
def _keeps_its_object() -> bool:
    """True if a node keeps its Python object alive, as it does in newer releases."""
    with torch.enable_grad():  # `explain` may call this while nothing is recorded
        result = torch.ones(
            (), device="cpu", requires_grad=True
        ).neg()  # saves nothing, so that no hook of the user's runs
    node = result.grad_fn
    return sys.getrefcount(node) > _FREE
