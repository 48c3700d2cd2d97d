"""Finds the call that made a gradient 0 or None, as `explain` finds the call that made a gradient NaN.

`zeros` watches for two events. A call may take tensors with a graph and return tensors without one: `argmax`, `x > 0`,
`detach`, or any call under `no_grad`. Or a node may pass on only zeros although a nonzero gradient arrived: the node of
a dead relu, of a saturated sigmoid, or of a product that underflows. Most such calls are intended and harmless. A call
is reported only if it leaves a leaf without a gradient, or with zeros alone.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor
from torch.autograd.graph import GradientEdge
from torch.overrides import TorchFunctionMode

from ..functions.graph import graph_from
from ..ignoring.inside import leaves_of
from .program.code import Place, place_here, plan_of, users_frame
from .program.tensors import numbers_of, tensors_in, unseen
from .report.narration import Names
from .report.report import place


class Zero(NamedTuple):
    """A call because of which some leaves get no gradient, or a gradient of 0.

    Attributes:
        operator: the public name of the function.
        filename, line, source: the line of your code that called it.
        is_cut: True if its result has no graph, so the gradient is None. False if the gradient is 0.
        leaves: the names of these leaves.
    """

    operator: str
    filename: str
    line: int
    source: str
    is_cut: bool
    leaves: list[str]

    def __str__(self) -> str:
        names = ", ".join(self.leaves)
        why = f"its result has no graph, so no gradient reaches {names}"
        if not self.is_cut:
            why = f"a gradient arrived, and all that was passed on to {names} is 0"
        return f"{self.operator}\n  {place(self.filename, self.line)}\n    {self.source}\n  {why}"


class _Call(NamedTuple):
    """A call, with those of its operands that have a graph if its result has none."""

    name: str
    place: Place
    operands: Sequence[Tensor] = ()


def _is_something(gradient: Tensor | None) -> bool:
    """Whether an element is not 0, as far as the elements can be read."""
    numbers = None if gradient is None else numbers_of(gradient)
    return gradient is not None and (numbers is None or bool(numbers.any()))


class zeros(TorchFunctionMode):  # noqa: N801
    """Watch a block of code, and report the calls because of which a leaf gets a gradient of 0, or no gradient.

    The numbers are the same with and without `zeros`. It does not see a call whose result leaves PyTorch, as with
    `item`, or a call in compiled code.

    Example:
        >>> import torch
        >>> from zero_or_nan import explain
        >>> x = torch.tensor([1.0, 3.0], requires_grad=True)
        >>> with explain.zeros() as found:
        ...     x.round().sum().backward()
        >>> [(zero.operator, zero.leaves) for zero in found]
        [('round', ['x'])]
    """

    def __init__(self) -> None:
        super().__init__()
        self._found: list[Zero] = []
        self._calls: dict[Any, _Call] = {}  # by node
        self._cut: dict[int, tuple[Tensor, list[_Call]]] = {}  # by the identity of a tensor without a graph
        self._takers: dict[Any, list[_Call]] = {}  # by node, what made its operands without a graph

    def __enter__(self) -> list[Zero]:
        super().__enter__()
        return self._found

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        call = functools.partial(func, *args, **(kwargs or {}))
        if func is Tensor.backward:
            return self._backward(args[0], call)
        result = call()
        came = list(tensors_in((args, kwargs)))
        attribute = getattr(func, "__self__", None) if getattr(func, "__name__", "") == "__get__" else None
        name = getattr(attribute, "__name__", plan_of(func).name)
        one = _Call(name, place_here(sys._getframe(1)), [each for each in came if each.requires_grad])
        calls = [one] if one.operands else [call for tensor in came for call in self._cuts_of(tensor)]
        for tensor in tensors_in(result):
            if tensor.grad_fn is not None:
                self._calls.setdefault(tensor.grad_fn, one._replace(operands=()))
                self._takers.setdefault(tensor.grad_fn, []).extend(
                    call for each in came for call in self._cuts_of(each)
                )
            elif not tensor.requires_grad and calls:
                self._cut[id(tensor)] = tensor, calls
        return result

    def _backward(self, loss: Tensor, run: Callable[[], Any]) -> Any:
        names, graph = Names(users_frame()), graph_from([loss])
        leaves = dict(leaves_of(graph))
        for cut in [*(cut for node in graph for cut in self._takers.get(node, ())), *self._cuts_of(loss)]:
            behind = [leaf for node, leaf in leaves_of(graph_from(cut.operands)) if node not in leaves]
            own = [leaf for leaf in cut.operands if leaf.is_leaf and not any(leaf is each for each in leaves.values())]
            self._add(cut, True, [*behind, *own], names)
        fed: set[Any] = set()
        stopped: list[tuple[Any, Any]] = []

        def look(node: Any, passed: Sequence[Tensor | None], arrived: Sequence[Tensor | None]) -> None:
            with unseen():
                some = any(map(_is_something, arrived))
                for each, (ahead, _) in zip(passed, node.next_functions, strict=False):
                    if ahead is not None and _is_something(each):
                        fed.add(ahead)
                    elif ahead is not None and some:
                        stopped.append((node, ahead))

        hooks = [node.register_hook(functools.partial(look, node)) for node in graph if node not in leaves]
        try:
            return run()
        finally:
            for hook in hooks:
                hook.remove()
            for node, edges in graph.items():  # a call may have made several nodes
                for ahead, _ in edges if node in self._calls else ():
                    self._calls.setdefault(ahead, self._calls[node])
            for node, ahead in stopped:
                lost = [leaf for each, leaf in leaves_of(graph_from([GradientEdge(ahead, 0)])) if each not in fed]
                if node in self._calls:
                    self._add(self._calls[node], False, lost, names)
            self._calls.clear()
            self._cut.clear()
            self._takers.clear()

    def _cuts_of(self, tensor: Tensor) -> list[_Call]:
        """The calls because of which a tensor has no graph."""
        return self._cut[id(tensor)][1] if id(tensor) in self._cut else []

    def _add(self, call: _Call, is_cut: bool, leaves: Sequence[Tensor], names: Names) -> None:
        texts = list(dict.fromkeys(map(names.of_target, leaves)))
        zero = Zero(call.name, call.place.filename, call.place.line, call.place.source, is_cut, texts)
        if texts and zero not in self._found:
            self._found.append(zero)
