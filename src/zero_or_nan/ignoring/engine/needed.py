"""The nodes that PyTorch's engine runs if it is asked for the gradients of some inputs only.

The engine decides this at the start of a run, without walking through what is behind the inputs. So we ask the engine:
we start a run from a node of our own ahead of the roots, look at the graph from there, and end the run by an exception.
No node of the user's graph runs, and none of the user's hooks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from ...functions.graph import DEEP_GRAPHS, AccumulateGrad, Graph, graph_from, held_from
from .attach import compiled_autograd_aside

_engine: Any = torch.autograd.Variable._execution_engine
_runs: Callable[[Any], bool] = torch._C._will_engine_execute_node


class _Seen(Exception):
    """Ends the run that asks the engine."""


class _Asking(torch.autograd.Function):
    """The node from which the run starts."""

    @staticmethod
    def forward(ctx: Any, look: Callable[[], None], *roots: Tensor) -> Tensor:
        ctx.look = look
        return torch.empty((), device="cpu")

    @staticmethod
    def backward(ctx: Any, _: Any) -> Any:
        ctx.look()
        raise _Seen


def needed_from(roots: Sequence[Any], inputs: Iterable[Any]) -> Graph:
    """The nodes that backward from the roots runs for the gradients of the inputs alone.

    Deep graphs are held until nothing else holds them. If the engine can't be asked, these are all nodes that backward
    can reach: if a root is a graph edge, inside of a transform of `torch.func`, and while PyTorch detects anomalies,
    because it would report our exception as one.
    """
    inputs = tuple(inputs)
    is_usual = all(isinstance(root, Tensor) and root.requires_grad for root in roots)
    if not inputs or not is_usual or torch.is_anomaly_enabled():
        return held_from(roots)
    DEEP_GRAPHS.sweep()
    graph: Graph = {}
    try:
        with torch.inference_mode(False), compiled_autograd_aside():  # the first lets PyTorch record, too
            asking = _Asking.apply(lambda: graph.update(graph_from(roots, _is_run)), *roots)  # type: ignore[no-untyped-call]
            _engine.run_backward((asking,), (asking.detach(),), True, False, inputs, True, False)
    except _Seen:
        DEEP_GRAPHS.hold(graph)
        return graph
    except Exception:  # inside of `torch.func`, or the arguments are wrong, which the user's call will raise again
        return held_from(roots)
    return graph  # no input can be reached


def _is_run(node: Any) -> bool:
    """True if the engine runs a node. The engine can't be asked about leaves."""
    return type(node) is AccumulateGrad or _runs(node)
