"""`backward` and `grad` with PyTorch's own arguments, and the choice between plain backward and the masked pass."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge
from torch.masked import MaskedTensor, masked_tensor

from ...functions.fills import mark_formulas
from ...functions.graph import Edge, Graph, edge_of
from ...masks.mask import everywhere, full
from ...masks.numbers import is_dense
from .attach import is_captured, needed_from, not_compiled
from .higher import in_forward_mode
from .masked_pass import Pass
from .plan import nothing_ignored, on_any_process
from .precheck import is_safe

_PLAIN = contextlib.nullcontext()
TensorOrEdge = Tensor | GradientEdge
Vectors = Tensor | Sequence[Tensor | None]

TakeOver = Callable[..., Any]

_TAKING_OVER: list[TakeOver] = []


def takes_over(take_over: TakeOver) -> TakeOver:
    """Register a function that may compute the gradients of `grad` in another way.

    It is called as `take_over(once_more, for_each, roots, inputs, vectors, retain_graph, create_graph)`, and returns
    None if it has nothing to do. `once_more(vectors, retain_graph)` is the call of `grad`, with other vectors, and
    `for_each(batch, retain_graph, as_calls)` gives the gradients for each of a list of vectors, stacked. `as_calls`
    says whether each of them is a call of `grad`, instead of a run in one pass.
    """
    _TAKING_OVER.append(take_over)
    return take_over


COUNTING: list[Callable[[], Any]] = []
"""What makes an `extras.counts.Count` for each pass while the ignored elements are counted; else empty."""


@not_compiled
def backward(
    tensors: TensorOrEdge | Iterable[TensorOrEdge],
    grad_tensors: Vectors | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    grad_variables: Vectors | None = None,
    inputs: TensorOrEdge | Iterable[TensorOrEdge] | dict[Any, TensorOrEdge] | None = None,
) -> None:
    """Like `torch.autograd.backward`, but elements that the loss ignored do not reach the gradient.

    You do not change the forward code. The `.grad` of each leaf is a plain tensor with the leaf's shape and dtype. An
    element that the loss ignored gets the gradient 0. Wherever plain PyTorch's gradient is finite, `.grad` has the same
    bits, with two exceptions: `logcumsumexp` behind an ignored NaN, and the gradient of a gradient, which may be
    rounded differently. An element that the loss *uses* keeps its NaN or inf. As in PyTorch, gradients accumulate in
    `.grad`, hooks run, and the graph is freed.

    Args:
        tensors: what to differentiate: a tensor, a graph edge, or a sequence of them.
        grad_tensors: the vectors of the vector-Jacobian product: one tensor for each of `tensors`, with the same shape
            and dtype. You may leave it out if all `tensors` are scalars. A zero in `grad_tensors` is an ordinary
            number: it does not mean that an element is ignored.
        retain_graph: keep the graph for another pass. By default the graph is freed, as in PyTorch.
        create_graph: record a graph of the gradient, so that you can differentiate the gradient again. An `ignoring`
            pass over that graph treats the elements that this pass ignored as constants. A 0 that PyTorch's own formula
            fills in, as in the derivative of a norm of 0, does not count as ignored. A plain backward pass over that
            graph gives plain PyTorch's result. `create_graph` makes this pass slower: the pass then follows every
            operator, even if plain backward would be enough.
        grad_variables: PyTorch's deprecated name for `grad_tensors`.
        inputs: accumulate gradients only into these leaves.

    Raises:
        RuntimeError: in the same situations as `torch.autograd.backward`, with the same message; also while a CUDA
            graph is captured.

    Warns:
        UserWarning: at most once in a pass, if `ignoring` could not follow an operator and the gradient may be wrong
            because of this. Examples are an operator without a rule, an `autograd.Function` that uses NumPy, and a
            compiled region that does not show what its zeros mean. From there on, the gradient is plain PyTorch's.

    Source:
        The page *What counts as ignored* of the book defines what is ignored. The cases that made this function
        necessary are pytorch#10729, #52248, #67180 and #4132.

    >>> x = torch.tensor([1.0, 100.0], requires_grad=True)
    >>> loss = torch.where(x < 50, x.exp(), torch.zeros(2)).sum()
    >>> backward(loss)
    >>> x.grad
    tensor([2.7183, 0.0000])
    """
    roots, into = sequence(tensors), _iterable_again(inputs)
    with _pass(roots, asked_for=into, recorded=create_graph):
        torch.autograd.backward(roots, grad_tensors, retain_graph, create_graph, grad_variables, into)


@not_compiled
def grad(
    outputs: TensorOrEdge | Iterable[TensorOrEdge],
    inputs: TensorOrEdge | Iterable[TensorOrEdge] | dict[Any, TensorOrEdge],
    grad_outputs: Vectors | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
    *,
    ignored: Literal["zero", "masked"] = "zero",
) -> Any:
    """Like `torch.autograd.grad`, but elements that the loss ignored do not reach the gradient.

    Args:
        outputs: what to differentiate: a tensor, a graph edge, or a sequence of them.
        inputs: what to differentiate with respect to: a tensor or graph edge, a sequence of them, or, on releases
            of PyTorch that accept it, a dict of them.
        grad_outputs: the vectors of the vector-Jacobian product: one tensor for each output, with the same shape and
            dtype. You may leave it out if all outputs are scalars.
        retain_graph: keep the graph for another pass. By default the graph is freed, as in PyTorch.
        create_graph: record a graph of the gradient, so that you can differentiate the gradient again, as `backward`
            describes it.
        only_inputs: deprecated by PyTorch. It has no effect.
        allow_unused: return None for an input that the outputs don't depend on, instead of raising an error.
        is_grads_batched: the first dimension of `grad_outputs` is a batch of vectors. Each vector gets a pass.
        materialize_grads: return zeros instead of None.
        ignored: "zero" returns plain tensors, which are 0 at each element that the loss ignored. "masked" returns a
            `torch.masked.MaskedTensor` for each input, whose mask is False at each element that the loss ignored. So
            you can distinguish a zero from an ignored element. If `materialize_grads` is set as well, an input that the
            outputs don't depend on gets a gradient of which every element is ignored.

    Returns:
        One gradient for each input, with the input's shape and dtype. If `inputs` is a dict, the result is a dict too.

    Raises:
        RuntimeError, ValueError, TypeError: in the same situations as `torch.autograd.grad`, with the same message.
        RuntimeError: if a transform of `torch.func` hides the numbers from `ignoring`. Use `ignoring.func` instead.
            Also while a CUDA graph is captured.
        ValueError: if `ignored` is neither "zero" nor "masked". With "masked", also if an input or a gradient is
            sparse, nested or a DTensor, or has a dtype other than float16, float32 and float64. `MaskedTensor` supports
            only these three.

    Warns:
        UserWarning: at most once in a pass, if `ignoring` could not follow an operator and the gradient may be wrong
            because of this. With "masked", PyTorch also warns that masked tensors are a prototype.

    >>> x = torch.tensor([1.0, 100.0], requires_grad=True)
    >>> loss = torch.where(x < 50, x.exp(), torch.zeros(2)).sum()
    >>> grad(loss, [x], retain_graph=True)
    (tensor([2.7183, 0.0000]),)
    >>> grad(loss, [x], retain_graph=True, ignored="masked")
    (MaskedTensor(
      [  2.7183,       --]
    ),)

    The gradient of a gradient:

    >>> (slope,) = grad(loss, [x], create_graph=True)
    >>> grad(slope.sum(), [x])
    (tensor([2.7183, 0.0000]),)
    """
    if ignored not in ("zero", "masked"):
        raise ValueError(f'ignored={ignored!r} is not known; use "zero" for plain tensors or "masked" for masked ones')
    rest: dict[str, Any] = dict(
        create_graph=create_graph,
        only_inputs=only_inputs,
        allow_unused=allow_unused,
        materialize_grads=materialize_grads,
    )
    roots, of, given = sequence(outputs), _iterable_again(inputs), _iterable_again(grad_outputs)

    def once_more(vectors: Any, retain: bool | None) -> Any:
        return grad(roots, of, vectors, retain, is_grads_batched=is_grads_batched, ignored=ignored, **rest)

    def for_each(batch: Sequence[Any], retain: bool | None, as_calls: bool) -> Any:
        if not as_calls and not is_grads_batched:
            return _all_rows(_grads(roots, of, batch, retain, ignored, rest))
        return _all_rows([*(once_more(vectors, True) for vectors in batch[:-1]), once_more(batch[-1], retain)])

    for take_over in _TAKING_OVER:
        gradients = take_over(once_more, for_each, roots, of, given, retain_graph, create_graph)
        if gradients is not None:
            return gradients
    if not is_grads_batched:
        return _grads(roots, of, [given], retain_graph, ignored, rest)[0]
    batch = _batch(roots, given)
    if not batch:  # PyTorch raises its own error
        return torch.autograd.grad(roots, of, given, retain_graph, is_grads_batched=True, **rest)
    # PyTorch runs a batch by `vmap`, which can't carry a mask.
    return _all_rows(_grads(roots, of, batch, retain_graph, ignored, rest))


def _all_rows(rows: Sequence[Any]) -> Any:
    """The gradients for a batch of vectors, from those for each vector."""
    return each(lambda *gradients: _stacked(list(gradients)), *rows)


def _grads(
    roots: Any, inputs: Any, batch: Sequence[Any], retain_graph: bool | None, ignored: str, rest: dict[str, Any]
) -> list[Any]:
    """The gradients for each of some vectors. Each vector gets its own run of PyTorch's engine, in one pass."""
    edges: Any = ()
    if ignored == "masked":
        edges = each(_edge_of_masked, inputs if isinstance(inputs, dict) else sequence(inputs))
    results = []
    with _pass(roots, edges, inputs, rest["create_graph"]) as masked_pass:
        for number, vectors in enumerate(batch, 1):
            retain = retain_graph if number == len(batch) else True
            result = torch.autograd.grad(roots, inputs, vectors, retain, **rest)
            if ignored == "masked":
                result = each(lambda gradient, edge: _masked(gradient, edge, masked_pass), result, edges)
            results.append(result)
            if number < len(batch):
                count = COUNTING[0]() if COUNTING else None
                if masked_pass is not None:
                    masked_pass.begin_again(count)
    return results


def _pass(roots: Sequence[Any], edges: Any = (), asked_for: Any = None, recorded: bool = False) -> Any:
    """The context for PyTorch's engine: a masked pass, or no context if plain backward is enough.

    Plain backward is not enough if masks are asked for. If the gradient is differentiated again, or has tangents in
    forward mode, plain backward is enough only if nothing can be ignored: the precheck can't see the numbers that the
    next pass, or the tangents, will be multiplied by.
    """
    if is_captured():
        raise RuntimeError(
            "ignoring reads the numbers of a program, and there are none while a CUDA graph is captured. Call it "
            "outside of torch.cuda.graph, or capture plain loss.backward()"
        )
    recorded = recorded or in_forward_mode()
    count = COUNTING[0]() if COUNTING else None
    graph = needed_from(roots, tensors_in(asked_for))
    unsafe: list[Any] = []
    is_enough = plain_is_enough(graph, recorded, unsafe)
    if not edges and not on_any_process(not is_enough, roots, graph):
        return _PLAIN
    keep = [edge for edge in (edges.values() if isinstance(edges, dict) else edges) if edge is not None]
    inside = [tensor for tensor in tensors_in(asked_for) if getattr(tensor, "grad_fn", None) is not None]  # no leaves
    masked_pass = Pass(roots, graph, keep, asked_for=inside, unsafe=unsafe, by_rules_alone=recorded)
    masked_pass.count = count
    return masked_pass


def plain_is_enough(graph: Graph, recorded: bool, unsafe: list[Any]) -> bool:
    """True if plain backward gives the right gradient. `unsafe` gets the nodes that fail the precheck."""
    mark_formulas(graph)
    return nothing_ignored(graph) or not recorded and is_safe(graph, unsafe)


def sequence(tensors: Any) -> tuple[Any, ...]:
    """Tensors or graph edges as a tuple. You may give a single one."""
    return (tensors,) if isinstance(tensors, (Tensor, GradientEdge)) else tuple(tensors)


def _iterable_again(tensors: Any) -> Any:
    """The tensors; an iterator as a tuple, because it could be used only once."""
    return tuple(tensors) if isinstance(tensors, Iterator) else tensors


def each(function: Callable[..., Any], *results: Any) -> Any:
    """Call the function with the gradients of each input. Returns a dict if PyTorch returned one, else a tuple."""
    if isinstance(results[0], dict):
        return {name: function(*(result[name] for result in results)) for name in results[0]}
    return tuple(map(function, *results))


def tensors_in(inputs: Any) -> Iterable[Any]:
    """The tensors or graph edges in one, several, a dict of them, or None."""
    return inputs.values() if isinstance(inputs, dict) else () if inputs is None else sequence(inputs)


def _edge_of_masked(tensor: Any) -> Edge | None:
    """The edge of an input. Raises here for what `MaskedTensor` would refuse later, when the graph is freed."""
    if isinstance(tensor, Tensor) and (tensor.layout is not torch.strided or tensor.is_nested):
        kind = "a nested tensor" if tensor.layout is torch.strided else tensor.layout
        raise ValueError(f'ignored="masked" needs dense inputs, and an input is {kind}; use "zero"')
    dtype = getattr(_metadata(tensor), "dtype", torch.float32)
    if dtype not in (torch.float16, torch.float32, torch.float64):
        raise ValueError(f'ignored="masked" can\'t be used with an input of {dtype}; use "zero"')
    return edge_of(tensor)


def _masked(gradient: Any, edge: Edge | None, masked_pass: Pass) -> Any:
    """The gradient as a `MaskedTensor`."""
    if gradient is None:
        return None
    if gradient.layout is not torch.strided or not is_dense(gradient):
        kind = f"a {type(gradient).__name__}" if gradient.layout is torch.strided else gradient.layout
        raise ValueError(f'ignored="masked" needs a dense gradient, and this one is {kind}; use "zero"')
    gradient = gradient.detach()
    if edge in masked_pass.masks:
        mask = full(masked_pass.masks[edge], gradient)
        return masked_tensor(gradient, mask | (gradient != 0))
    # Backward sent nothing to this edge. The gradient of a root was given by the caller, so it counts; zeros that
    # materialize_grads made up are ignored.
    return masked_tensor(gradient, everywhere(edge in map(edge_of, masked_pass.roots), gradient).clone())


def _metadata(root: Any) -> Any:
    """An object that has the shape and dtype of a tensor or graph edge."""
    return root.node._input_metadata[root.output_nr] if isinstance(root, GradientEdge) else root


def _batch(roots: Sequence[Any], given: Any) -> list[tuple[Tensor, ...]]:
    """The vectors of each pass; an empty list if PyTorch would refuse the batch."""
    batches = () if given is None else sequence(given)
    fits = len(batches) == len(roots) and all(
        isinstance(batch, Tensor) and batch.dim() > 0 and batch.shape[1:] == tuple(_metadata(root).shape)
        for batch, root in zip(batches, roots, strict=True)
    )
    return list(zip(*batches, strict=True)) if fits and len({len(batch) for batch in batches}) == 1 else []


def _stacked(gradients: list[Any]) -> Any:
    """The gradients of one input, of all passes, as one tensor."""
    if gradients[0] is None:
        return None
    if isinstance(gradients[0], MaskedTensor):
        data = torch.stack([gradient.get_data() for gradient in gradients])
        return masked_tensor(data, torch.stack([gradient.get_mask() for gradient in gradients]))
    return torch.stack(gradients)
