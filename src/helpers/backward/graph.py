"""Records a backward pass: the nodes of the graph, what each node saved, what arrives, and what it passes on."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.masked import masked_tensor

from zero_or_nan import ignoring
from zero_or_nan.functions.graph import graph_from
from zero_or_nan.ignoring.engine.masked_pass import Observer, Pass
from zero_or_nan.masks.mask import full

from ..entries import Entries, Outcome, outcome

MOST = 40
"""The most nodes of a graph that is recorded. A larger figure would not be readable."""

METHODS = ("vanilla", "ignoring")
"""The two backward passes that are recorded."""


@dataclass(frozen=True, eq=False)
class Sent:
    """The cotangent that a node passes on along one edge.

    Attributes:
        slot: the number of the input of the node's function, in the order of `node.next_functions`.
        to: the number of the step that gets the cotangent.
        output: the number of the output of that step's function that the cotangent belongs to.
        value: the cotangent of each method, before other cotangents for the same output are added.
    """

    slot: int
    to: int
    output: int
    value: Mapping[str, Outcome]


@dataclass(frozen=True, eq=False)
class FigureStep:
    """One node of the graph: a step of the backward pass.

    Attributes:
        node: the node's name in PyTorch's messages, such as `ExpBackward0`; for a leaf `AccumulateGrad`.
        name: the reader's name for the tensor whose gradient arrives here, or the empty text.
        saved: everything that the node saved in the forward pass, by PyTorch's names.
        arrives: for each output of the node's function and each method, the cotangent that arrives.
        sends: the cotangents that the node passes on. A leaf passes nothing on.
    """

    node: str
    name: str
    saved: Mapping[str, Any]
    arrives: Mapping[int, Mapping[str, Outcome]]
    sends: Sequence[Sent]

    @property
    def leaf(self) -> bool:
        return self.node == LEAF

    @property
    def function(self) -> str:
        """The function whose derivative this is: `where` of `WhereBackward0`, `index_put` of `IndexPutBackward0`."""
        stem = re.sub(r"Backward\d*$", "", self.node)
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", stem).lower()


LEAF = "AccumulateGrad"


def merged(values: Mapping[str, Outcome]) -> Mapping[str, Outcome]:
    """The cotangent of each method; or a single one with the empty name, if both methods have the same."""
    vanilla, ignored = (values[method] for method in METHODS)
    entries = isinstance(vanilla, Entries) and isinstance(ignored, Entries) and vanilla.texts() == ignored.texts()
    return {"": vanilla} if entries or vanilla == ignored else values


def record(loss: Tensor, inputs: Mapping[str, Tensor], gradient: Tensor | None = None) -> list[FigureStep]:
    """Run the vanilla and the ignoring backward pass, and record what every node gets, saved and passes on.

    The graph is kept, and no `.grad` of the inputs is written. The steps are in an order in which backward can run
    them, beginning with the loss. Only the nodes that lead to the inputs are recorded. The arguments and the errors are
    those of `backward_figure`.
    """
    if loss.numel() != 1 and gradient is None:
        raise ValueError(f"the loss has shape {list(loss.shape)}: give gradient=, a tensor of that shape")
    start = torch.ones_like(loss) if gradient is None else gradient
    named: dict[tuple[Any, int], list[str]] = {}
    for name, tensor in inputs.items():
        named.setdefault(_place(get_gradient_edge(tensor)), []).append(name)
    root = _place(get_gradient_edge(loss))
    order = _leading_to(loss, {node: " and ".join(names) for (node, _), names in named.items()})
    number = {node: at for at, node in enumerate(order)}
    places = dict.fromkeys(
        [root, *((to, output) for node in order for to, output in node.next_functions if to in number), *named]
    )
    edges = [GradientEdge(node, output) for node, output in places]
    saved = [_saved(node) for node in order]
    kept = [(tensor, tensor.grad) for tensor in inputs.values() if tensor.retains_grad]
    try:
        passes = _vanilla(order, loss, edges, start), _ignoring(loss, edges, start)
    finally:
        for tensor, grad in kept:
            tensor.grad = grad

    def by_method(values: Iterable[Any]) -> dict[str, Outcome]:
        return dict(zip(METHODS, map(outcome, values), strict=True))

    arrives = {place: by_method(arrived[at] for arrived, _ in passes) for at, place in enumerate(places)}
    return [
        FigureStep(
            node=_name(node),
            name=" and ".join(name for (at, _), names in named.items() if at is node for name in names),
            saved=each,
            arrives={output: values for (at, output), values in arrives.items() if at is node},
            sends=[
                Sent(slot, number[to], output, by_method(sent.get((node, slot)) for _, sent in passes))
                for slot, (to, output) in enumerate(node.next_functions)
                if to in number and (node, slot) in passes[0][1]
            ],
        )
        for node, each in zip(order, saved, strict=True)
    ]


def _place(edge: GradientEdge) -> tuple[Any, int]:
    return edge.node, edge.output_nr


def _leading_to(loss: Tensor, ends: Mapping[Any, str]) -> list[Any]:
    """The nodes between the loss and the ends, each after all nodes that send to it."""
    import networkx  # type: ignore[import-untyped]

    edges = graph_from([loss]).items()
    graph = networkx.DiGraph({node: [to for to, _ in ahead if to is not None] for node, ahead in edges})
    if missing := [name for end, name in ends.items() if end not in graph]:
        raise ValueError(f"the loss does not depend on {', '.join(missing)}")
    kept = set(ends).union(*(networkx.ancestors(graph, end) for end in ends))
    order = [node for node in reversed(list(networkx.dfs_postorder_nodes(graph, loss.grad_fn))) if node in kept]
    if len(order) > MOST:
        raise ValueError(f"a figure of {len(order)} nodes can't be read: give a smaller computation (at most {MOST})")
    return order


def _name(node: Any) -> str:
    return str(node.name()).rpartition("::")[2]


def _saved(node: Any) -> dict[str, Any]:
    """Everything that the node saved. Tensors are copied, because code may change them in place later."""
    names = [name for name in dir(node) if name.startswith("_saved_")]
    own = {f"saved_tensors[{at}]": _copied(value) for at, value in enumerate(getattr(node, "saved_tensors", ()))}
    return {name.removeprefix("_saved_"): _copied(getattr(node, name)) for name in names} | own


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().cpu().clone()  # clone keeps the strides, on which the order of sums depends
    return tuple(map(_copied, value)) if isinstance(value, (tuple, list)) else value


_Passed = tuple[Sequence[Tensor | None], Mapping[tuple[Any, int], Tensor]]
"""The cotangents at the edges in one pass, and the cotangent that each node sends, by its slot."""


def _vanilla(order: Sequence[Any], loss: Tensor, edges: Sequence[GradientEdge], start: Tensor) -> _Passed:
    sent: dict[tuple[Any, int], Tensor] = {}

    def keep(node: Any, values: Sequence[Tensor | None], _: Any) -> None:
        sent.update({(node, slot): value.detach().clone() for slot, value in enumerate(values) if value is not None})

    handles = [node.register_hook(partial(keep, node)) for node in order if _name(node) != LEAF]
    try:
        return torch.autograd.grad(loss, edges, start, retain_graph=True, allow_unused=True), sent
    finally:
        for handle in handles:
            handle.remove()


def _ignoring(loss: Tensor, edges: Sequence[GradientEdge], start: Tensor) -> _Passed:
    listening = Listening()
    with warnings.catch_warnings():
        # PyTorch warns each time that masked tensors are a prototype.
        warnings.filterwarnings("ignore", message=".*MaskedTensors is in prototype stage")
        with Pass([loss], graph_from([loss]), by_rules_alone=True, observer=listening):
            torch.autograd.grad(loss, edges, start, retain_graph=True, allow_unused=True)
        arrived = ignoring.grad(loss, edges, start, retain_graph=True, allow_unused=True, ignored="masked")
        sent = {key: masked_tensor(value, mask) for key, (value, mask) in listening.sent.items()}
    return arrived, sent


class Listening(Observer):
    """Records what each node of a pass of `ignoring` sends, with its mask.

    `ignoring.grad` alone is not enough: if a tensor is used twice, it gives the sum of both cotangents.
    """

    def __init__(self) -> None:
        self.sent: dict[tuple[Any, int], tuple[Tensor, Tensor]] = {}

    def handed_on(self, node: Any, values: Sequence[Any], masks: Sequence[Any]) -> None:
        for slot, (value, mask) in enumerate(zip(values, masks, strict=False)):
            if value is not None:
                value = value.detach().clone()
                self.sent[node, slot] = value, full(mask, value).clone() | (value != 0)
