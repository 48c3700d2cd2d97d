"""`backward` and `grad` with PyTorch's own arguments, and the choice between the plain pass and the careful one."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge
from torch.masked import MaskedTensor, masked_tensor

from ..quiet import quiet_prototype_warning
from .cotangent import LOST, Cotangent
from .foreign import guard
from .graph import nodes_of
from .harmless import harmless


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
    roots = _sequence(tensors)
    nodes = tuple(nodes_of(roots))
    if grad_variables is not None or _is_harmless(nodes):
        torch.autograd.backward(tensors, grad_tensors, retain_graph, create_graph, grad_variables, inputs)
        return
    cotangents = _cotangents(roots, grad_tensors)
    with Careful(nodes):
        torch.autograd.backward(roots, cotangents, retain_graph, create_graph, inputs=inputs)
    for tensor in _sequence(inputs):
        if isinstance(tensor, Tensor) and type(tensor.grad) is Cotangent:
            tensor.grad = tensor.grad.value


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
        outputs, inputs, grad_outputs, retain_graph, create_graph, only_inputs, allow_unused, is_grads_batched,
            materialize_grads: as in `torch.autograd.grad`.
        ignored: "zero" returns plain tensors, 0 where the loss ignored the entry. "masked" returns a
            `torch.masked.MaskedTensor` for each input, with mask False there, so that a zero and an ignored entry are
            told apart.

    Returns:
        One gradient for each input, in the input's shape and dtype; a dict for a dict of inputs where PyTorch takes one.

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
        create_graph=create_graph, only_inputs=only_inputs, allow_unused=allow_unused, materialize_grads=materialize_grads
    )
    roots = _sequence(outputs)
    nodes = tuple(nodes_of(roots))
    if ignored == "zero" and _is_harmless(nodes):
        return torch.autograd.grad(
            outputs, inputs, grad_outputs, retain_graph, is_grads_batched=is_grads_batched, **rest
        )
    if is_grads_batched:
        return _batched(roots, inputs, grad_outputs, retain_graph, ignored, rest)
    with Careful(nodes):
        result = torch.autograd.grad(roots, inputs, _cotangents(roots, grad_outputs), retain_graph, **rest)
    if isinstance(result, dict):
        return {name: _finished(gradient, ignored) for name, gradient in result.items()}
    return tuple(_finished(gradient, ignored) for gradient in result)


def _refuse(create_graph: bool) -> None:
    if create_graph:
        raise NotImplementedError(
            "ignoring does not differentiate a gradient again: which entries the loss ignored is not a part of the graph "
            "that create_graph=True would make. Call torch.autograd with create_graph=True, and keep the dangerous "
            "entries out of the forward code (a second where, or a selection before the function)."
        )


def _is_harmless(nodes: Sequence[Any]) -> bool:
    try:
        return harmless(nodes)
    except RuntimeError:  # a graph that is freed or was changed in place: backward itself says it best
        return True


class Careful:
    """The careful pass: foreign nodes are guarded while it runs, and what had no rule is told at its end."""

    def __init__(self, nodes: Sequence[Any]) -> None:
        self.nodes = nodes

    def __enter__(self) -> None:
        self.outer = set(LOST)
        LOST.clear()
        self.handles = guard(self.nodes)

    def __exit__(self, failed: type[BaseException] | None, *details: object) -> None:
        for handle in self.handles:
            handle.remove()
        lost = sorted(LOST)
        LOST.clear()
        LOST.update(self.outer)
        if lost and failed is None:
            warnings.warn(
                f"ignoring has no rule for {', '.join(lost)}: from there on the gradient is plain PyTorch's, and ignored "
                "entries may contaminate it",
                stacklevel=3,
            )


def _sequence(tensors: Any) -> tuple[Any, ...]:
    if tensors is None:
        return ()
    if isinstance(tensors, (Tensor, GradientEdge)):
        return (tensors,)
    return tuple(tensors.values() if isinstance(tensors, Mapping) else tensors)


def _cotangents(roots: Sequence[Any], given: Any) -> Any:
    """A cotangent for each root. What PyTorch would refuse is passed on as it is, for PyTorch to refuse."""
    givens = (given,) * len(roots) if given is None else _sequence(given)
    if len(givens) != len(roots):
        return given
    result = []
    for root, tensor in zip(roots, givens, strict=True):
        if tensor is None and isinstance(root, Tensor) and root.requires_grad and root.numel() == 1:
            if root.is_floating_point():
                tensor = torch.ones_like(root, memory_format=torch.preserve_format)
        if isinstance(tensor, Tensor) and tensor.layout is torch.strided:
            tensor = Cotangent(tensor.detach())
        result.append(tensor)
    return tuple(result)


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
    return masked_tensor(gradient, torch.zeros_like(gradient, dtype=torch.bool))


def _batched(
    roots: Sequence[Any], inputs: Any, grad_outputs: Any, retain_graph: bool | None, ignored: Any, rest: dict[str, Any]
) -> Any:
    """One careful pass for each vector of the batch; PyTorch's own `vmap` can't carry a mask."""
    batches = _sequence(grad_outputs)
    size = next((len(batch) for batch in batches if isinstance(batch, Tensor)), 0)
    rows = []
    for i in range(size):
        vectors = [batch[i] if isinstance(batch, Tensor) else batch for batch in batches]
        keep = True if i + 1 < size else retain_graph
        rows.append(grad(roots, inputs, vectors, keep, ignored=ignored, **rest))
    if isinstance(rows[0], dict):
        return {name: _stacked([row[name] for row in rows]) for name in rows[0]}
    return tuple(_stacked(list(column)) for column in zip(*rows, strict=True))


def _stacked(gradients: list[Any]) -> Any:
    if gradients[0] is None:
        return None
    if isinstance(gradients[0], MaskedTensor):
        data = torch.stack([gradient.get_data() for gradient in gradients])
        return masked_tensor(data, torch.stack([gradient.get_mask() for gradient in gradients]))
    return torch.stack(gradients)
