"""A call of the user's function with *fresh* tensors in place of the arguments to differentiate by.

- A fresh tensor is a leaf. If the argument is itself differentiated, by a caller or by an outer call of such a
  function, the fresh tensor is a view of the argument. Then the gradient is recorded, so that it has a gradient, too.
- Under `torch.vmap`, a fresh tensor holds all samples, and each sample has its own elements in it. The gradient of the
  sum over the samples then has the gradient of each sample.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.overrides import TorchFunctionMode

from ....functions.graph import AccumulateGrad, held_from, is_region, regions_exist
from ....masks.trees import (
    TreeSpec,
    keystr,
    tree_flatten,
    tree_flatten_with_path,
    tree_leaves,
    tree_map,
    tree_unflatten,
)
from ...engine.higher import tangent_of
from .vmap import level, outside_all, refuse_inside, together, under_vmap

Argnums = int | tuple[int, ...]

_OPEN = "_zero_or_nan_open"
"""An attribute of each fresh tensor: True until its function has returned. Then nobody can differentiate by it."""


class Call(NamedTuple):
    """A call of the user's function with fresh tensors.

    Attributes:
        level: the innermost transform around the call; 0 outside of all.
        inputs: the fresh tensors, each with all samples.
        in_structure: puts a list with one item for each input into the structure of the arguments.
        outputs: the tensors that the function returned.
        roots: the same tensors, each with all samples.
        structure: their structure.
        other: what the function returned besides.
        is_recorded: whether the caller may differentiate the result again: it depends on more than the fresh leaves.
    """

    level: int
    inputs: list[Tensor]
    in_structure: Callable[[list[Any]], Any]
    outputs: list[Any]
    roots: list[Tensor]
    structure: TreeSpec
    other: Any
    is_recorded: bool

    def result(self) -> Any:
        """What the function returned, as the caller gets it."""
        return tree_unflatten(list(map(self._given_back, self.outputs)), self.structure)

    def aux(self) -> Any:
        """What the function returned besides, as the caller gets it."""
        return tree_map(self._given_back, self.other)

    def _given_back(self, thing: Any) -> Any:
        """A tensor without the graph of the fresh leaves, if it has no other."""
        if not isinstance(thing, Tensor) or self.is_recorded and _depends_on_more([together(thing)]):
            return thing
        return thing.detach()


class _OverAll(TorchFunctionMode):
    """While entered, a maximum over all elements is `amax`, in which equal elements share the gradient.

    So they do in `max`. But `torch.vmap` computes `max` of a sample by `max` over dimensions, which takes one of them.
    """

    _by = {torch.max: torch.amax, Tensor.max: torch.amax, torch.min: torch.amin, Tensor.min: torch.amin}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        is_over_all = func in self._by and len(args) + len(kwargs) == 1
        return (self._by[func] if is_over_all else func)(*args, **kwargs)


def called(
    name: str, func: Callable[..., Any], argnums: Argnums, has_aux: bool, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Call:
    """Call the user's function, with fresh tensors in place of the arguments to differentiate by."""
    numbers = _numbers(name, argnums, len(args))
    given = [_tensors_in(name, f"argument {number}", args[number]) for number in numbers]
    refuse_inside(f"ignoring.func.{name}", [tensor for tensors, _ in given for tensor in tensors])
    recording = torch.is_grad_enabled()
    inputs: list[Tensor] = []
    fresh = list(args)
    with torch.inference_mode(False), torch.enable_grad():
        for number, (tensors, structure) in zip(numbers, given, strict=True):
            new = [_fresh(together(tensor), recording) for tensor in tensors]
            for tensor in new:
                setattr(tensor, _OPEN, True)
            inputs += new
            fresh[number] = tree_unflatten(list(map(under_vmap, new)), structure)
        nodes = [tensor.grad_fn for tensor in inputs]
        with _OverAll() if level() else contextlib.nullcontext():
            returned = func(*fresh, **kwargs)
        if any(tensor.grad_fn is not node for tensor, node in zip(inputs, nodes, strict=True)):
            raise RuntimeError(f"{name}: the function wrote into its argument; write into a copy, x.clone(), instead")
    for tensor in inputs:
        setattr(tensor, _OPEN, False)
    other = None
    if has_aux:
        if not (isinstance(returned, tuple) and len(returned) == 2):
            raise RuntimeError(
                f"{name}: with has_aux=True the function should return a tuple (result, aux), and it returned "
                f"{described(returned)}"
            )
        returned, other = returned
    outputs, result = _outputs_in(name, returned)
    refuse_inside(f"ignoring.func.{name}", outputs)
    with torch.enable_grad():  # under `torch.vmap`, they are views of the outputs
        roots = list(map(together, outputs))
    _refuse_second_derivatives(name, roots, inputs)

    def in_structure(items: list[Any]) -> Any:
        rest = iter(items)
        trees = [tree_unflatten([next(rest) for _ in tensors], structure) for tensors, structure in given]
        return trees[0] if isinstance(argnums, int) else tuple(trees)

    is_recorded = recording and _depends_on_more(
        [*roots, *(together(t) for t in tree_leaves(other) if isinstance(t, Tensor))]
    )
    return Call(level(), inputs, in_structure, outputs, roots, result, other, is_recorded)


def _fresh(tensor: Tensor, recording: bool) -> Tensor:
    """The tensor that the function gets in place of an argument."""
    with outside_all():
        if tensor.is_inference():
            tensor = tensor.clone()  # autograd refuses tensors of inference mode
        if recording and tensor.requires_grad:
            return tensor.view_as(tensor)
        if tangent_of(tensor) is not None:  # `detach` would drop it
            with torch.no_grad():
                return tensor.view_as(tensor).requires_grad_()
        return tensor.detach().requires_grad_()


_NO_SECOND = (
    "{}: the function differentiates a function that torch.compile compiled, and the result has no second derivative; "
    "call the function that is not compiled"
)
_BEHIND = "_zero_or_nan_behind"
"""In the metadata of the node of a compiled region's gradient: the edges from the regions to their arguments."""


def note_regions(roots: Sequence[Any], gradients: Sequence[Any]) -> None:
    """Note what the gradients of compiled regions depend on. Their own nodes lead only to what the regions saved.

    Raises:
        RuntimeError: if PyTorch recorded no such node, as 2.6 does, and an outer function differentiates by an argument
            of a region. Its derivative would lack the region, and nothing could tell later.
    """
    if not regions_exist():
        return
    nodes: list[Any] = list(held_from(gradients))
    recorded = [node for node in nodes if node.name() == "CompiledFunctionBackwardBackward"]
    edges = [GradientEdge(*edge) for node in held_from(roots) if is_region(node) for edge in node.next_functions]
    for node in recorded:
        node.metadata.setdefault(_BEHIND, edges)
    if edges and not recorded:
        leaves = [node.variable for node in held_from(edges) if type(node) is AccumulateGrad]  # type: ignore[attr-defined]
        if any(getattr(leaf, _OPEN, False) for leaf in leaves):
            raise RuntimeError(_NO_SECOND.format("ignoring.func"))


def _refuse_second_derivatives(name: str, roots: Sequence[Any], inputs: Sequence[Tensor]) -> None:
    """Refuse to differentiate the gradient of a compiled region: PyTorch would leave out all that the region does."""
    if not regions_exist():
        return
    with torch.inference_mode(False), outside_all():
        nodes: list[Any] = list(held_from([root for root in roots if root.requires_grad]))
        functions = [node for node in nodes if isinstance(node, BackwardCFunction)]
        edges = [edge for node in functions for edge in node.metadata.get(_BEHIND, ())]
        behind = held_from(edges)
        if behind and any(get_gradient_edge(tensor).node in behind for tensor in inputs):
            raise RuntimeError(_NO_SECOND.format(name))


def _depends_on_more(tensors: Sequence[Tensor]) -> bool:
    """True if one of the tensors has a graph that leads to a leaf other than closed fresh tensors."""
    leaves: list[Any] = [tensor for tensor in tensors if tensor.requires_grad and tensor.is_leaf]
    with outside_all():
        nodes: Sequence[Any] = list(held_from([tensor for tensor in tensors if tensor.requires_grad]))
    leaves += [node.variable for node in nodes if type(node) is AccumulateGrad]  # type: ignore[attr-defined]
    return any(getattr(leaf, _OPEN, True) for leaf in leaves)


def _numbers(name: str, argnums: Any, count: int) -> list[int]:
    """The positions of the arguments to differentiate by."""
    numbers = argnums if isinstance(argnums, tuple) else (argnums,)
    if not all(isinstance(number, int) for number in numbers):
        raise RuntimeError(f"{name}: argnums should be an int or a tuple of ints, and is {argnums!r}")
    if not numbers and name != "vjp":
        raise RuntimeError(f"{name}: argnums is empty; name at least one argument")
    for number in numbers:
        if not -count <= number < count:
            raise RuntimeError(f"{name}: argnums has {number}, and the function got {count} positional arguments")
    positions = [number % count for number in numbers]
    if len(set(positions)) < len(positions):
        raise RuntimeError(f"{name}: argnums should name each argument once, and is {argnums}")
    return positions


def _tensors_in(name: str, what: str, tree: Any) -> tuple[list[Tensor], TreeSpec]:
    """The tensors of an argument, and their structure."""
    for path, leaf in tree_flatten_with_path(tree)[0]:
        place = f"{what}{keystr(path)}"
        if not isinstance(leaf, Tensor):
            raise ValueError(
                f"{name} differentiates by tensors, and {place} is {described(leaf)}; make it a tensor, or leave it "
                "out of argnums"
            )
        if not (leaf.is_floating_point() or leaf.is_complex()):
            raise RuntimeError(
                f"{name} differentiates by tensors of floating or complex dtype, and {place} is {described(leaf)}; "
                "convert it, or leave it out of argnums"
            )
    return tree_flatten(tree)


def _outputs_in(name: str, returned: Any) -> tuple[list[Tensor], TreeSpec]:
    """The tensors that the function returned, and their structure."""
    outputs, structure = tree_flatten(returned)
    if not outputs or not all(isinstance(output, Tensor) for output in outputs):
        raise RuntimeError(
            f"{name}: the function should return tensors, and it returned {described(returned)}; return what is not "
            "differentiated as aux, with has_aux=True"
        )
    if name in ("vjp", "jacrev") and not all(output.is_floating_point() or output.is_complex() for output in outputs):
        dtype = next(output.dtype for output in outputs if not (output.is_floating_point() or output.is_complex()))
        raise RuntimeError(f"{name}: all outputs should have a floating or complex dtype, and one is {dtype}")
    return outputs, structure


def described(thing: Any) -> str:
    """An argument or a result, as an error names it."""
    if isinstance(thing, Tensor):
        return f"a tensor of shape {tuple(thing.shape)} and dtype {thing.dtype}"
    return repr(thing) if thing is None or isinstance(thing, int | float) else f"a {type(thing).__name__}"
