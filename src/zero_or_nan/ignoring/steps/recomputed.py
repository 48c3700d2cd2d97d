"""Reentrant checkpoints: their backward computes a part of the graph again, and is a pass of its own over that part."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ..graph import edge_of
from ..masks import Mask, everywhere
from .step import Owner, Results, Step

CHECKPOINT = "CheckpointFunctionBackward"


class Recomputed(Step):
    """The run of a checkpoint's backward: the masks go in at what was computed again, and out at its inputs."""

    selects = False
    is_needed = True
    inside: Any = None

    def begin(self, arriving: Sequence[Any]) -> Sequence[Any]:
        # An output that was not used gets zeros that PyTorch makes up.
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

    @staticmethod
    def prepare(node: Any, owner: Owner) -> Any:
        """Have the function that is computed again tell the pass that runs; until the handle is removed."""
        return _Told(node, owner)

    def recomputed(self, inputs: Sequence[Any], outputs: Any) -> None:
        """A pass inside of this one follows what was just computed."""
        results = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
        # The results of this node are counted through its tensors alone.
        leaves = enumerate(tensor for tensor in inputs if isinstance(tensor, Tensor))
        edges = ((number, edge_of(leaf)) for number, leaf in leaves)
        self.leaves = {number: edge for number, edge in edges if edge is not None}
        roots = [result for result in results if isinstance(result, Tensor) and result.requires_grad]
        self.inside = self.owner.inner(roots, self.leaves.values())
        self.inside.__enter__()
        for result, mask, unused in zip(results, self.masks, self.unused, strict=False):
            if isinstance(result, Tensor) and result.requires_grad and result.grad_fn is not None:
                self.inside.send((result.grad_fn, result.output_nr), everywhere(False, result) if unused else mask)


class _Told:
    """A pass that a checkpoint's function tells what it computed; several passes may share the node."""

    lock = threading.Lock()

    def __init__(self, node: Any, owner: Owner) -> None:
        self.node, self.owner = node, owner
        with self.lock:
            if not isinstance(node.run_function, _Telling):
                node.run_function = _Telling(node.run_function)
            self.telling = node.run_function
            self.telling.passes.append(owner)

    def remove(self) -> None:
        with self.lock:
            self.telling.passes.remove(self.owner)
            if not self.telling.passes and self.node.run_function is self.telling:
                self.node.run_function = self.telling.function


class _Telling:
    def __init__(self, function: Any) -> None:
        self.function = function
        self.passes: list[Owner] = []

    def __call__(self, *inputs: Any) -> Any:
        outputs = self.function(*inputs)
        steps = [step for step in (owner.recomputing(self) for owner in self.passes) if step is not None]
        if steps:
            steps[-1].recomputed(inputs, outputs)
        return outputs
