"""Cotangents that are spread over several processes, as `DTensor`: each process has a part, and the whole mask.

If a derivative gets such a cotangent, each of its operators runs twice: on the parts, as in plain PyTorch, and by its
rule, on whole tensors that are gathered from all processes. The result of the rule is distributed as plain PyTorch's
result is. That takes memory for the whole tensors. It happens only if the precheck fails on one of the processes.

All processes have to run the same operators, or they would wait for each other forever. So each decision depends only
on what all processes know: the masks, which are made the same where a cotangent becomes a `DTensor`, and whether one of
the processes needs a masked pass.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from ...functions.conditions import ALWAYS
from ...functions.graph import AccumulateGrad, forward_class, run
from ...functions.record import Function, name_in_torch
from ...functions.registry import function
from ...masks.cotangent import Cotangent, Run, as_in_pytorch, wrap
from ...masks.mask import Mask, full
from ...masks.numbers import Form, not_zero, register
from ...masks.trees import tree_leaves, tree_map, tree_map_only
from ...masks.watching import Watching
from ..engine.plan import chooses_step
from ..engine.steps.step import Results, Step
from ..engine.steps.transferred import Transferred

aten = torch.ops.aten

BORDERS = (
    "torch.distributed.tensor._api._FromTorchTensor",
    "torch.distributed.tensor._api._ToTorchTensor",
    "torch.distributed.tensor._redistribute.Redistribute",
)
"""The functions that make a DTensor of a plain tensor, a plain tensor of a DTensor, or change the placements."""


def is_distributed(thing: Any) -> bool:
    """True if a tensor is spread over several processes."""
    if type(thing) is Tensor:
        return False
    tensors = sys.modules.get("torch.distributed.tensor")  # imported only by programs that use DTensor
    return tensors is not None and isinstance(thing, tensors.DTensor)


def whole(tensor: Any) -> Tensor:
    """A DTensor, gathered on every process."""
    gathered: Any = tensor.detach().full_tensor()  # 2.6 can't gather a leaf from inside of an operator
    # The collective may still run in the background.
    return gathered.wait() if hasattr(gathered, "wait") else gathered  # type: ignore[no-any-return]


@register
class Distributed(Form):
    """The form of DTensors. A mask is whole: each process has the mask of all elements."""

    is_shared = True

    made_by = "torch.distributed.tensor"
    """The module of PyTorch that makes such tensors. As long as it is not imported, there are none."""

    def has(self, tensor: Any) -> bool:
        return is_distributed(tensor)

    def here(self, tensor: Any) -> Any:
        return None if any(placement.is_partial() for placement in tensor.placements) else tensor._local_tensor

    def terms_here(self, tensor: Any) -> Any:
        """The values that this process has, or its terms of their sums; None if it has neither."""
        unknown = any(each.is_partial() and each.reduce_op not in ("sum", "avg") for each in tensor.placements)
        return None if unknown else tensor._local_tensor

    def not_zero(self, tensor: Any) -> Tensor:
        return whole(tensor) != 0

    def cotangent(self, value: Any, mask: Mask, step: Run) -> Cotangent:
        cotangent = Cotangent(whole(value), mask, step)
        cotangent.parts = value
        return cotangent

    def prefer_exact(self, exact: Any, masked: Cotangent) -> Any:
        """Plain PyTorch's result `exact`, a DTensor, where it is finite, and elsewhere `masked`, which is whole."""
        there = whole(exact)
        finite = there.isfinite()
        return exact if bool(finite.all()) else cut_as(exact, torch.where(finite, there, masked.value.to(there.dtype)))

    def reader(self, node: Any) -> Any:
        return Gathered(node)

    def watching(self) -> Watching:
        return Gathering()

    def is_spread(self, roots: Iterable[Any], nodes: Iterable[Any]) -> bool:
        """True if several processes share the graph with these roots and nodes."""
        return bool(_meshes(roots, nodes))

    def on_any_process(self, here: bool, roots: Iterable[Any], nodes: Iterable[Any]) -> bool:
        """True if `here` is True on one of the processes that share a graph. All of them have to call this together."""
        for mesh in _meshes(roots, nodes):
            if mesh.get_coordinate() is not None:
                here = bool(_anywhere(torch.tensor(here, device=mesh.device_type), mesh))
        return here


def cut_as(like: Any, value: Tensor) -> Any:
    """A whole tensor, which every process has, distributed like a DTensor. `Partial` placements become `Replicate`."""
    from torch.distributed.tensor import Replicate

    placements = [Replicate() if placement.is_partial() else placement for placement in like.placements]
    return _on_every_process(value, like.device_mesh).redistribute(placements=placements)


def _on_every_process(value: Tensor, mesh: Any) -> Any:
    """A tensor that is the same on all processes, as a replicated DTensor."""
    from torch.distributed.tensor import DTensor, Replicate

    return DTensor.from_local(value, mesh, [Replicate()] * mesh.ndim, run_check=False)


class Gathering(Watching):  # type: ignore[no-untyped-call]
    """Runs each operator of a derivative on the parts, and once more on whole tensors, to which the rules apply."""

    def __init__(self) -> None:
        super().__init__()
        self._wholes: dict[int, tuple[Any, Any]] = {}
        """By id, each DTensor of the derivative and the same tensor as a whole. Keeping the DTensor keeps its id."""

    def __torch_dispatch__(
        self, op: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = (args, kwargs or {})
        parts, named_parts = tree_map_only(Cotangent, as_in_pytorch, given)
        exact = op(*parts, **named_parts)
        if not any(map(is_distributed, tree_leaves((parts, named_parts)))):
            return exact
        wholes, named_wholes = tree_map(self._as_whole, given)
        try:
            masked = _in_one_process(op)(*wholes, **named_wholes)
        except Exception as error:
            self._failed(op, error, given)
            masked = wrap(tree_map(self._as_whole, exact))
        return self._paired(exact, masked)

    def _as_whole(self, thing: Any) -> Any:
        if not is_distributed(thing):
            return thing
        if id(thing) not in self._wholes:
            self._wholes[id(thing)] = thing, whole(thing)
        return self._wholes[id(thing)][1]

    def _paired(self, exact: Any, masked: Any) -> Any:
        """The rule's result, with plain PyTorch's in `parts`; or only the latter, if it does not have a cotangent."""
        if isinstance(exact, (tuple, list)):
            return type(exact)(map(self._paired, exact, masked))
        if type(masked) is Cotangent:
            masked.parts = exact
            return masked
        if is_distributed(exact):
            self._wholes[id(exact)] = exact, masked
        return exact

    @staticmethod
    def _failed(op: Any, error: Exception, given: Any) -> None:
        steps = [leaf.step for leaf in tree_leaves(given) if type(leaf) is Cotangent]
        if steps and steps[0] is not None:
            steps[0].failed(str(op._schema.name), error)


def _in_one_process(op: Any) -> Callable[..., Any]:
    """The function that computes on whole tensors what DTensor computes for an operator."""
    from torch.distributed.tensor import DTensor

    handled: Any = DTensor._op_dispatcher._custom_op_handlers
    return _OF_A_PARALLEL_LOSS.get(op, op) if op in handled else op  # type: ignore[no-any-return]


def _nll_loss_and_log_softmax_backward(gradient: Any, log_probabilities: Tensor, *args: Any) -> Any:
    backward = aten.nll_loss_backward if log_probabilities.dim() < 3 else aten.nll_loss2d_backward
    of_classes = min(1, log_probabilities.dim() - 1)
    by_class = backward(gradient, log_probabilities, *args)
    return aten._log_softmax_backward_data(by_class, log_probabilities, of_classes, log_probabilities.dtype)


# Inside of `loss_parallel`, DTensor's derivative of nll_loss includes the derivative of log_softmax. The derivative of
# log_softmax then only hands its cotangent on.
_OF_A_PARALLEL_LOSS: dict[Any, Callable[..., Any]] = {
    aten.nll_loss_backward.default: _nll_loss_and_log_softmax_backward,
    aten.nll_loss2d_backward.default: _nll_loss_and_log_softmax_backward,
    aten._log_softmax_backward_data.default: lambda gradient, output, dim, dtype: gradient.to(dtype),
}


class Gathered:
    """A node whose saved tensors are gathered when they are read."""

    def __init__(self, node: Any) -> None:
        self._node = node

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._node, name)
        if isinstance(found, tuple):
            return tuple(whole(item) if is_distributed(item) else item for item in found)
        return whole(found) if is_distributed(found) else found


def masks_across(border: Any, arriving: Iterable[Any], masks: Iterable[Mask]) -> list[Mask]:
    """Apply the derivative of a border to the masks of the cotangents that arrived there, as tensors of 0 and 1.

    The mask of a plain tensor is this process's own. The mask of a DTensor is the same on all processes.
    """
    given = []
    for value, mask in zip(arriving, masks, strict=True):
        if value is not None:
            numbers = full(mask, value).to(value.dtype).contiguous()
            value = _on_every_process(numbers, value.device_mesh) if is_distributed(value) else numbers
        given.append(value)
    return [_as_mask(moved) for moved in run(border, *given)]


def _as_mask(moved: Any) -> Mask:
    """The mask from what a border's derivative made of 0 and 1."""
    if not isinstance(moved, Tensor):
        return None
    mask = not_zero(moved)
    if is_distributed(moved):  # processes that hold copies may have ignored different elements
        mask = _anywhere(mask, moved.device_mesh)  # type: ignore[attr-defined]
    return None if bool(mask.all()) else mask


def _anywhere(flags: Tensor, mesh: Any) -> Tensor:
    """True at each flag that is True on at least one of the processes."""
    import torch.distributed as dist

    found = flags.to(torch.uint8).contiguous()
    for dimension in range(mesh.ndim):
        dist.all_reduce(found, dist.ReduceOp.MAX, group=mesh.get_group(dimension))
    return found.bool()


def _meshes(roots: Iterable[Any], nodes: Iterable[Any]) -> list[Any]:
    """The meshes of processes that share a graph, in the order of the graph, which is the same on all processes."""
    from torch.distributed.device_mesh import DeviceMesh

    found: dict[Any, None] = {root.device_mesh: None for root in roots if is_distributed(root)}
    for node in nodes:
        if type(node) is AccumulateGrad:
            if is_distributed(node.variable):  # type: ignore[attr-defined]
                found[node.variable.device_mesh] = None  # type: ignore[attr-defined]
        elif is_border(node):
            facts = [getattr(fact, "mesh", fact) for fact in vars(node).values()]  # a spec has a mesh
            found.update(dict.fromkeys(fact for fact in facts if isinstance(fact, DeviceMesh)))
    return list(found)


def is_border(node: Any) -> bool:
    """True if the function of a node is one of `BORDERS`."""
    forward = forward_class(node)
    return forward is not None and name_in_torch(forward) in BORDERS


# A node that makes a DTensor of a plain tensor, or the reverse, or that changes placements: elements move from one
# process to another.

function(" ".join(BORDERS), moves=True, safe_if=ALWAYS)


class DTensorBoundary(Transferred):
    """The run of a derivative in which all processes take part: it also runs on the masks, on all of them together."""

    selects = False
    always_runs = True

    def end(self, results: Sequence[Any], arriving: Sequence[Any]) -> Results:
        return results, masks_across(self.node, arriving, self.masks)


@chooses_step
def _boundary(node: Any, function: Function) -> type[Step] | None:
    return DTensorBoundary if is_border(node) else None
