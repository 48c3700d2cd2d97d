"""The graph that backward goes through: its nodes, and the forward function behind each."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge, get_gradient_edge

AccumulateGrad: type = torch._C._functions.AccumulateGrad  # type: ignore[attr-defined]

Edge = tuple[Any, int]
"""A node ahead, and the number of the cotangent that it gets."""

Graph = dict[Any, Sequence[Edge]]
"""Every node that backward can reach, with its edges. Along a chain, the order is from the root on."""


def edge_of(tensor: Any) -> Edge | None:
    """The edge at which the gradient of a tensor or graph edge arrives; None if it has no gradient."""
    if isinstance(tensor, Tensor) and tensor.requires_grad:
        with torch.inference_mode(False):  # inside inference mode, PyTorch gives no edge of a leaf
            tensor = get_gradient_edge(tensor)
    return (tensor.node, tensor.output_nr) if isinstance(tensor, GradientEdge) else None


def graph_from(roots: Sequence[Any]) -> Graph:
    """Every node that backward can reach from the roots, which are tensors or graph edges."""
    stack = [getattr(root, "grad_fn", None) or getattr(root, "node", None) for root in roots]
    graph: Graph = {}
    while stack:
        node = stack.pop()
        if node is None or node in graph:
            continue
        graph[node] = edges = node.next_functions
        for ahead, _ in edges:
            if ahead is not None:
                stack.append(ahead)
    return graph


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


def runs_of_the_engine() -> int:
    """How many runs PyTorch's engine has begun, in all threads. To find out, this function starts one, which counts."""
    found: list[int] = []
    leaf = torch.zeros((), requires_grad=True, device="cpu")
    leaf.register_hook(lambda gradient: found.append(torch._C._current_graph_task_id()))  # type: ignore[no-untyped-call]
    torch.autograd.grad(leaf, leaf)
    return found[0]


TELLS_OF_HOOKS = hasattr(torch._C._autograd.SavedTensor, "unpack_hook")
"""Whether PyTorch shows which saved tensors have hooks. It does from 2.10 on."""


def can_be_read_again(node: Any, unknown: bool) -> bool:
    """True if reading the saved tensors runs no hook, which would compute them again or fetch them from elsewhere.

    Args:
        node: the node that saved them.
        unknown: the answer if PyTorch does not show the hooks, as before 2.10.
    """
    saved = [getattr(node, name) for name in _saved_by(node.__class__)]
    packed = [part for part in saved for part in (part if isinstance(part, (tuple, list)) else (part,))]
    return all(part.unpack_hook is None if hasattr(part, "unpack_hook") else unknown for part in packed)


@functools.cache
def _saved_by(node_type: type) -> list[str]:
    """The attributes that have a node's saved tensors in packed form: reading them runs no hook."""
    return [name for name in dir(node_type) if name.startswith("_raw_saved_")]


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
    for name in dir(torch._C._functions)
    if "Backward" in name or name in ("AccumulateGrad", "CopySlices", "DelayedError", "UndefinedGrad")
)
"""The forward functions whose nodes are PyTorch's own. All other nodes run unknown code, or raise an error."""

KINDS = frozenset(
    kind
    for name, kind in vars(torch._C._functions).items()
    if name == "AccumulateGrad" or re.fullmatch(r"\w+Backward\d+(_copy)?", name)
)
"""The types of nodes that belong to one forward function each."""
