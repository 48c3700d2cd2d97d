"""A copy of everything that a training step changes, made before the step, so that the step can run a second time.

`explain.probe` runs a loss many times, and uses the same copy to restore the state after each run.
"""

from __future__ import annotations

import random
import sys
from collections import UserDict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from ..program.rerun import RandomState, on_copies


class Before:
    """A copy of what a step changes, made before the step."""

    def __init__(self, model: nn.Module | None, arguments: Any) -> None:
        self.dicts = [(mapping, dict(mapping)) for mapping in _dicts(arguments)]
        self.random = RandomState.now()
        self.python = random.getstate()
        numpy = sys.modules.get("numpy")
        self.numpy = numpy.random.get_state() if numpy is not None else None
        self.buffers = [] if model is None else [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
        self.grads: dict[int, tuple[Tensor, Tensor | None, Tensor | None]] = {}
        self.values: dict[int, tuple[Tensor, Tensor]] = {}
        self.optimizers: dict[Optimizer, tuple[list[tuple[Tensor, Tensor]], dict[Tensor, dict[str, Any]]]] = {}

    def note(self, leaves: dict[int, Tensor]) -> None:
        """Keep the `.grad` of leaves, by their `id`, before the first pass adds to them."""
        for at, leaf in leaves.items():
            grad = leaf.grad
            self.grads[at] = leaf, grad, None if grad is None else grad.detach().clone()

    def note_grad(self, leaf: Tensor) -> None:
        """Remember which tensor is the `.grad` of a leaf. No pass adds to this tensor."""
        self.grads.setdefault(id(leaf), (leaf, leaf.grad, None))

    def note_module(self, module: nn.Module) -> None:
        """Keep a module's own state: its attributes, its modes, its buffers, and the `.grad` of its parameters."""
        self.dicts += [(mapping, dict(mapping)) for mapping in (vars(module), module._buffers)]
        self.buffers += [(each, each.detach().clone()) for each in module.buffers(recurse=False)]
        for parameter in module.parameters():
            self.note_grad(parameter)

    def note_values(self, leaves: dict[int, Tensor]) -> None:
        """Keep the values of leaves that the step changes by its own code."""
        self.values |= {at: (leaf, leaf.detach().clone()) for at, leaf in leaves.items()}

    def note_optimizer(self, optimizer: Optimizer) -> None:
        """Keep the parameters and the state of an optimizer, before a step that may run before the failure is seen."""
        if optimizer not in self.optimizers:
            values = [(p, p.detach().clone()) for p in parameters_of(optimizer)]
            self.optimizers[optimizer] = values, {p: on_copies(optimizer.state[p]) for p in list(optimizer.state)}

    def put_back(self) -> None:
        for mapping, items in self.dicts:
            if list(mapping) != list(items) or any(mapping[key] is not item for key, item in items.items()):
                mapping.clear()
                mapping.update(items)
        self.random.put_back()
        random.setstate(self.python)
        if self.numpy is not None:
            sys.modules["numpy"].random.set_state(self.numpy)
        with torch.no_grad():
            for tensor, value in (*self.buffers, *self.values.values()):
                tensor.copy_(value)
            for leaf, grad, kept in self.grads.values():
                if grad is not None and kept is not None:
                    grad.copy_(kept)
                leaf.grad = grad
            for optimizer, (values, states) in reversed(self.optimizers.items()):  # the first copy counts
                for parameter, value in values:
                    parameter.copy_(value)
                optimizer.state.clear()
                optimizer.state.update({parameter: on_copies(state) for parameter, state in states.items()})


def _dicts(arguments: Any) -> Iterable[dict[Any, Any]]:
    """The dicts in arguments, at any depth but not in lists, which may be long: a step may pop labels from a batch."""
    found = {}
    left = [arguments]
    while left:
        thing = left.pop()
        thing = thing.data if isinstance(thing, UserDict) else thing  # as tokenizers of Hugging Face return it
        if isinstance(thing, tuple):
            left += thing
        elif isinstance(thing, dict) and id(thing) not in found:
            found[id(thing)] = thing
            left += thing.values()
    return found.values()


def parameters_of(optimizer: Optimizer) -> list[Tensor]:
    """The parameters of an optimizer."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
