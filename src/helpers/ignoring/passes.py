"""`backward` and `grad` with PyTorch's own arguments, and the choice between the plain pass and the careful one."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge
from torch.masked import MaskedTensor, masked_tensor

from ..quiet import quiet_prototype_warning
from .cotangent import LOST, Cotangent, outside
from .foreign import guard
from .graph import nodes_of
from .harmless import harmless as _is_harmless


def backward(
    tensors: Any,
    grad_tensors: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    grad_variables: Any = None,
    inputs: Any = None,
) -> None:
    """`torch.autograd.backward`, but what the loss ignored stays out of the gradient.

    The forward code is not changed. Each leaf's `.grad` is a plain tensor, 0 where the loss ignored the entry, and the
    very bits of plain PyTorch wherever plain PyTorch's gradient is finite. An entry that the loss *uses* keeps its NaN
    or inf.

    Args:
        tensors: what to differentiate: a tensor, a graph edge, or a sequence of them.
        grad_tensors: the vector of the vector-Jacobian product, one for each tensor; may be left out for scalars.
            Its own zeros are numbers like any other.
        retain_graph: keep the graph for another pass. Defaults to `create_graph`.
        create_graph: not available where a gradient needs care; see below.
        grad_variables: PyTorch's deprecated name for `grad_tensors`.
        inputs: accumulate into these alone.

    Raises:
        RuntimeError: whatever `torch.autograd.backward` raises, in its words.
        NotImplementedError: for `create_graph=True`.

    Warns:
        UserWarning: once a pass, when a cotangent with ignored entries met an operator without a rule, a compiled
            region or a foreign `autograd.Function`; from there on the gradient is plain PyTorch's.

    >>> x = torch.tensor([1.0, 100.0], requires_grad=True)
    >>> loss = torch.where(x < 50, x.exp(), torch.zeros(2)).sum()
    >>> backward(loss)
    >>> x.grad
    tensor([2.7183, 0.0000])
    """
    _refuse(create_graph)
    roots, inputs = _sequence(tensors), _kept(inputs)
    nodes = tuple(nodes_of(roots))
    if _is_harmless(nodes):
        torch.autograd.backward(roots, grad_tensors, retain_graph, create_graph, grad_variables, inputs)
        return
    if grad_variables is None:
        grad_tensors = _cotangents(roots, grad_tensors)
    else:
        grad_variables = _cotangents(roots, grad_variables)
    with Careful(nodes):
        torch.autograd.backward(roots, grad_tensors, retain_graph, create_graph, grad_variables, inputs)


def grad(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
    *,
    ignored: Literal["zero", "masked"] = "zero",
) -> Any:
    """`torch.autograd.grad`, but what the loss ignored stays out of the gradient.

    Args:
        outputs: what to differentiate, as in `torch.autograd.grad`.
        inputs: what to differentiate with respect to.
        grad_outputs: the vectors of the vector-Jacobian product; may be left out for scalars.
        retain_graph: keep the graph for another pass.
        create_graph: not available, see below.
        only_inputs: deprecated by PyTorch, and without effect.
        allow_unused: give None for an input that the outputs don't depend on, in place of an error.
        is_grads_batched: take the first dimension of `grad_outputs` for a batch of vectors: one pass for each.
        materialize_grads: give zeros in place of None.
        ignored: "zero" returns plain tensors, 0 where the loss ignored the entry. "masked" returns a
            `torch.masked.MaskedTensor` for each input, with mask False there, so that a zero and an ignored entry are
            told apart.

    Returns:
        One gradient for each input, in the input's shape and dtype; a dict for a dict, where PyTorch takes one.

    Raises:
        RuntimeError, ValueError, TypeError: whatever `torch.autograd.grad` raises, in its words.
        ValueError: when `ignored` is neither of the two words.
        NotImplementedError: for `create_graph=True`.

    Warns:
        UserWarning: as `backward` does.

    >>> x = torch.tensor([1.0, 100.0], requires_grad=True)
    >>> loss = torch.where(x < 50, x.exp(), torch.zeros(2)).sum()
    >>> grad(loss, [x], retain_graph=True)
    (tensor([2.7183, 0.0000]),)
    >>> grad(loss, [x], ignored="masked")
    (MaskedTensor(
      [  2.7183,       --]
    ),)
    """
    if ignored not in ("zero", "masked"):
        raise ValueError(f'ignored={ignored!r} is not known; use "zero" for plain tensors or "masked" for masked ones')
    _refuse(create_graph)
    rest: dict[str, Any] = dict(
        create_graph=create_graph,
        only_inputs=only_inputs,
        allow_unused=allow_unused,
        materialize_grads=materialize_grads,
    )
    roots, inputs, given = _sequence(outputs), _kept(inputs), _kept(grad_outputs)
    nodes = tuple(nodes_of(roots))
    batch = _batch(roots, given) if is_grads_batched else None
    if (ignored == "zero" and _is_harmless(nodes)) or (is_grads_batched and not batch):
        return torch.autograd.grad(roots, inputs, given, retain_graph, is_grads_batched=is_grads_batched, **rest)
    with Careful(nodes):
        if batch is None:
            result = torch.autograd.grad(roots, inputs, _cotangents(roots, given), retain_graph, **rest)
            return _each(lambda gradient: _finished(gradient, ignored), result)
        # One pass for each vector: PyTorch's own `vmap` can't carry a mask.
        rows = [torch.autograd.grad(roots, inputs, _cotangents(roots, vectors), True, **rest) for vectors in batch[:-1]]
        rows.append(torch.autograd.grad(roots, inputs, _cotangents(roots, batch[-1]), retain_graph, **rest))
        return _each(lambda *gradients: _stacked([_finished(gradient, ignored) for gradient in gradients]), *rows)


def _refuse(create_graph: bool) -> None:
    if create_graph:
        raise NotImplementedError(
            "ignoring does not differentiate a gradient again: which entries the loss ignored is not a part of the "
            "graph that create_graph=True would make. Call torch.autograd with create_graph=True, and keep the "
            "dangerous entries out of the forward code (a second where, or a selection before the function)."
        )


class Careful:
    """The careful pass: foreign nodes are guarded while it runs, and what had no rule is told at its end."""

    def __init__(self, nodes: Sequence[Any]) -> None:
        self.nodes = nodes

    def __enter__(self) -> None:
        LOST.begin()
        outside()
        self.handles = guard(self.nodes)

    def __exit__(self, failed: type[BaseException] | None, *details: object) -> None:
        for handle in self.handles:
            handle.remove()
        lost = sorted(LOST.end())
        if lost and failed is None:
            warnings.warn(
                f"ignoring has no rule for {', '.join(lost)}: from there on the gradient is plain PyTorch's, and "
                "ignored entries may contaminate it",
                stacklevel=3,
            )


def _sequence(tensors: Any) -> tuple[Any, ...]:
    return (tensors,) if isinstance(tensors, (Tensor, GradientEdge)) else tuple(tensors)


def _kept(tensors: Any) -> Any:
    """An iterator can be gone through only once."""
    return tuple(tensors) if isinstance(tensors, Iterator) else tensors


def _each(function: Callable[..., Any], *results: Any) -> Any:
    """The function of the gradients of each input, in the form in which PyTorch gave them."""
    if isinstance(results[0], dict):
        return {name: function(*(result[name] for result in results)) for name in results[0]}
    return tuple(map(function, *results))


def _cotangents(roots: Sequence[Any], given: Any) -> Any:
    """A cotangent for each root. What PyTorch would refuse is passed on as it is, for PyTorch to refuse."""
    try:
        givens = (None,) * len(roots) if given is None else _sequence(given)
    except TypeError:
        return given
    if len(givens) != len(roots):
        return given
    return tuple(map(_cotangent, roots, givens))


def _cotangent(root: Any, given: Any) -> Any:
    if not isinstance(root, (Tensor, GradientEdge)):
        return given
    kind = _kind(root)
    real_scalar = kind.dtype.is_floating_point and math.prod(kind.shape) == 1
    if given is None and real_scalar and getattr(root, "requires_grad", True):
        return Cotangent(torch.ones(tuple(kind.shape), dtype=kind.dtype, device=kind.device))
    if not isinstance(given, Tensor) or given.layout is not torch.strided:
        return given
    return Cotangent(given.detach())


def _kind(root: Any) -> Any:
    """Where a root's shape, dtype and device are told."""
    return root.node._input_metadata[root.output_nr] if isinstance(root, GradientEdge) else root


def _finished(gradient: Any, ignored: str) -> Any:
    if gradient is None:
        return None
    if ignored == "zero":
        return gradient.value if type(gradient) is Cotangent else gradient
    quiet_prototype_warning()
    return _masked(gradient)


def _masked(gradient: Tensor) -> MaskedTensor:
    if gradient.layout is not torch.strided:
        raise ValueError(f'ignored="masked" needs a dense gradient, and this one is {gradient.layout}; use "zero"')
    if type(gradient) is Cotangent:
        mask = gradient.ignored
        used = torch.ones_like(gradient.value, dtype=torch.bool) if mask is None else mask.logical_not()
        return masked_tensor(gradient.value, used)
    # What backward never reached, and materialize_grads made up.
    return masked_tensor(gradient.detach(), torch.zeros_like(gradient, dtype=torch.bool))


def _batch(roots: Sequence[Any], given: Any) -> list[tuple[Tensor, ...]]:
    """The vectors of each pass; none when PyTorch would refuse the batch."""
    batches = () if given is None else _sequence(given)
    fits = len(batches) == len(roots) and all(
        isinstance(batch, Tensor) and batch.dim() > 0 and batch.shape[1:] == tuple(_kind(root).shape)
        for batch, root in zip(batches, roots, strict=True)
    )
    return list(zip(*batches, strict=True)) if fits and len({len(batch) for batch in batches}) == 1 else []


def _stacked(gradients: list[Any]) -> Any:
    if gradients[0] is None:
        return None
    if isinstance(gradients[0], MaskedTensor):
        data = torch.stack([gradient.get_data() for gradient in gradients])
        return masked_tensor(data, torch.stack([gradient.get_mask() for gradient in gradients]))
    return torch.stack(gradients)
