"""Reentrant checkpoints: their backward computes a part of the graph again, and runs a backward pass over that part."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ....functions.graph import edge_of
from ....masks.mask import Mask, everywhere
from ..attach import current
from .step import Results, Step

CHECKPOINT = "CheckpointFunctionBackward"


class Recomputed(Step):
    """The run of a checkpoint's backward. An inner pass carries the masks from the recomputed outputs to the inputs."""

    selects = False
    on_cotangents = False
    always_runs = True
    runs_one_derivative = False
    inside: Any = None

    def begin(self, arriving: Sequence[Any]) -> Sequence[Any]:
        # PyTorch makes up zeros for an output that was not used.
        self.unused = [value is None for value in arriving]
        return arriving

    def end(self, results: Sequence[Any], arriving: Sequence[Any]) -> Results:
        masks: list[Mask] = [None] * len(results)
        if self.inside is not None:
            self.inside.__exit__(None)
            for number, edge in self.leaves.items():
                masks[number] = self.inside.masks.get(edge)
        return results, masks

    def abandon(self) -> None:
        if self.inside is not None:
            self.inside.__exit__(RuntimeError)

    def recomputed(self, inputs: Sequence[Any], outputs: Any) -> None:
        """Begin an inner pass over the part of the graph that was just computed again."""
        results = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
        # The results of this node are numbered by its tensor inputs alone.
        leaves = enumerate(tensor for tensor in inputs if isinstance(tensor, Tensor))
        edges = ((number, edge_of(leaf)) for number, leaf in leaves)
        self.leaves = {number: edge for number, edge in edges if edge is not None}
        roots = [result for result in results if isinstance(result, Tensor) and result.requires_grad]
        self.inside = self.owner.inner(roots, self.leaves.values())
        self.inside.__enter__()
        for result, mask, unused in zip(results, self.masks, self.unused, strict=False):
            if isinstance(result, Tensor) and result.requires_grad and result.grad_fn is not None:
                self.inside.send((result.grad_fn, result.output_nr), everywhere(False, result) if unused else mask)


_lock = threading.Lock()


class _Reporting:
    """A checkpoint's function that reports its outputs to the pass that runs. Several passes may share the node."""

    def __init__(self, node: Any) -> None:
        self.node, self.function = node, node.run_function
        self.passes = 0

    def __call__(self, *inputs: Any) -> Any:
        outputs = self.function(*inputs)
        masked_pass = current()
        step = None if masked_pass is None else masked_pass.recomputing(self)
        if step is not None:
            step.recomputed(inputs, outputs)
        return outputs

    def remove(self) -> None:
        """Put the function back, when the last pass that needs its outputs ends."""
        with _lock:
            self.passes -= 1
            if not self.passes and self.node.run_function is self:
                self.node.run_function = self.function


def reporting(node: Any) -> _Reporting:
    """Make a checkpoint's function report its outputs to the pass that runs. Returns a handle to `remove`."""
    with _lock:
        if not isinstance(node.run_function, _Reporting):
            node.run_function = _Reporting(node)
        node.run_function.passes += 1
        function: _Reporting = node.run_function
    return function
