"""Reentrant checkpoints: their backward computes a part of the graph again, and is a pass of its own over that part."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from .graph import nodes_of
from .masks import Mask, everywhere
from .steps import Results, Step

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
    def prepare(node: Any) -> Any:
        """Have the function that is computed again tell the step that runs; removed with the handle."""
        return _Telling(node)

    def recomputed(self, inputs: Sequence[Any], outputs: Any) -> None:
        """A pass inside of this one follows what was just computed."""
        from .careful import Pass

        results = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
        # The results of this node are counted through its tensors alone.
        leaves = enumerate(tensor for tensor in inputs if isinstance(tensor, Tensor))
        edges = {number: get_gradient_edge(leaf) for number, leaf in leaves if leaf.requires_grad}
        self.leaves = {number: (edge.node, edge.output_nr) for number, edge in edges.items()}
        roots = [result for result in results if isinstance(result, Tensor) and result.requires_grad]
        self.inside = Pass(roots, tuple(nodes_of(roots)), edges.values(), self.owner)
        self.inside.__enter__()
        for result, mask, unused in zip(results, self.masks, self.unused, strict=False):
            if isinstance(result, Tensor) and result.requires_grad and result.grad_fn is not None:
                self.inside.send((result.grad_fn, result.output_nr), everywhere(False, result) if unused else mask)


class _Telling:
    """A checkpoint's function that tells the pass that runs what it computed; several passes may share it."""

    lock = threading.Lock()

    def __init__(self, node: Any) -> None:
        with self.lock:
            function = node.run_function
            self.shared = function if isinstance(function, _Shared) else _Shared(function)
            self.shared.users += 1
            self.node = node
            node.run_function = self.shared

    def remove(self) -> None:
        with self.lock:
            self.shared.users -= 1
            if not self.shared.users:
                self.node.run_function = self.shared.function


class _Shared:
    def __init__(self, function: Any) -> None:
        self.function = function
        self.users = 0

    def __call__(self, *inputs: Any) -> Any:
        from .careful import Pass

        outputs = self.function(*inputs)
        current = Pass.current()
        step = None if current is None else current.recomputing(self)
        if step is not None:
            step.recomputed(inputs, outputs)
        return outputs
