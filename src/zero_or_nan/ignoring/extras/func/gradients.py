"""`grad`, `grad_and_value`, `vjp` and `jacrev` as in `torch.func`, with the gradient that `ignoring` gives.

`torch.func` differentiates on levels of its own, where tensors are wrapped and can't carry a mask. These functions
build an ordinary graph instead: they call the function with fresh tensors in place of its arguments (`call`), and run
`ignoring.grad` on the result.

Benefit: hooks, masks, and gradients of gradients work as in every other pass. Downside: a transform of `torch.func`
around these functions can't look inside, so it is refused.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ....functions.graph import function_of, graph_from
from ....masks.cotangent import is_finite
from ....masks.numbers import unwrapped
from ....masks.trees import tree_flatten, tree_unflatten
from ...engine.attach import not_compiled
from ...engine.passes import grad as grad_of
from .call import Argnums, Call, called, described, note_regions
from .vmap import level, outside_all, together, under_vmap


def grad(func: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False) -> Callable[..., Any]:
    """Like `torch.func.grad`, but elements that the result ignored do not reach the gradient.

    Args:
        func: a function that returns a scalar tensor.
        argnums: the positional arguments to differentiate by: an int for one, a tuple of ints for several. Such an
            argument is a tensor of floating or complex dtype and any shape, or a tuple, list or dict of such tensors.
        has_aux: whether `func` returns a tuple `(result, aux)`. `aux` may be anything. It is not differentiated.

    Returns:
        A function with the arguments of `func`. It returns the gradient, or `(gradient, aux)`. The gradient has the
        structure, shapes and dtypes of the argument; for a tuple of ints, it is a tuple with one gradient for each. It
        is zero where an element was ignored, and where `func` does not use an argument at all.

    Raises:
        RuntimeError, ValueError: in the same situations as `torch.func.grad`, when the returned function is called.
        RuntimeError: if a transform of `torch.func` other than `vmap` is around the call, or if the gradient of a
            compiled function is differentiated: a compiled function has no second derivative.

    Warns:
        UserWarning: in the same situations as `ignoring.grad`.

    Source:
        The definition of what is ignored is the same as for `ignoring.backward`.

    >>> from zero_or_nan import ignoring
    >>> x = torch.tensor([1.0, 100.0])
    >>> def loss(x):
    ...     return torch.where(x < 50, x.exp(), 0).sum()
    >>> torch.func.grad(loss)(x)
    tensor([2.7183,    nan])
    >>> ignoring.func.grad(loss)(x)
    tensor([2.7183, 0.0000])

    The gradient of each sample, and a product with the second derivative:

    >>> torch.vmap(ignoring.func.grad(loss))(torch.stack([x, x - 1]))
    tensor([[2.7183, 0.0000],
            [1.0000, 0.0000]])
    >>> ignoring.func.grad(lambda x: ignoring.func.grad(loss)(x)[0])(x)
    tensor([2.7183, 0.0000])
    """

    @functools.wraps(func, updated=())  # by attributes of a compiled `func`, PyTorch would call it in place of this
    def gradient(*args: Any, **kwargs: Any) -> Any:
        found, value = _grad_and_value("grad", func, argnums, has_aux, args, kwargs)
        return (found, value[1]) if has_aux else found

    return gradient


def grad_and_value(func: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False) -> Callable[..., Any]:
    """Like `torch.func.grad_and_value`, but elements that the result ignored do not reach the gradient.

    Args:
        func, argnums, has_aux: the same as for `grad`.

    Returns:
        A function with the arguments of `func`. It returns `(gradient, result)`, or `(gradient, (result, aux))`.

    Raises:
        RuntimeError, ValueError: in the same situations as `grad`.

    >>> from zero_or_nan import ignoring
    >>> x = torch.tensor([1.0, 100.0])
    >>> ignoring.func.grad_and_value(lambda x: torch.where(x < 50, x.exp(), 0).sum())(x)
    (tensor([2.7183, 0.0000]), tensor(2.7183))
    """

    @functools.wraps(func, updated=())
    def gradient_and_value(*args: Any, **kwargs: Any) -> Any:
        return _grad_and_value("grad_and_value", func, argnums, has_aux, args, kwargs)

    return gradient_and_value


@not_compiled
def vjp(func: Callable[..., Any], *primals: Any, has_aux: bool = False) -> tuple[Any, ...]:
    """Like `torch.func.vjp`, but elements that the result ignored do not reach the vector-Jacobian product.

    Args:
        func: a function that returns a tensor of floating or complex dtype, or a tuple, list or dict of such tensors.
        primals: the arguments of `func`. It is differentiated by all of them: tensors of floating or complex dtype, or
            tuples, lists or dicts of such tensors.
        has_aux: whether `func` returns a tuple `(result, aux)`.

    Returns:
        `(result, pull)` or `(result, pull, aux)`. `pull(cotangents, retain_graph=True, create_graph=None)` takes
        cotangents in the structure of the result, and returns a tuple with one product for each of the primals. If
        `create_graph` is None, the product is recorded if something else than the primals can be differentiated.

    Raises:
        RuntimeError, ValueError: in the same situations as `torch.func.vjp`.
        RuntimeError: if a transform of `torch.func` other than `vmap` is around the call.

    >>> from zero_or_nan import ignoring
    >>> x = torch.tensor([1.0, 100.0])
    >>> result, pull = ignoring.func.vjp(lambda x: torch.where(x < 50, x.exp(), 0), x)
    >>> pull(torch.tensor([2.0, 1.0]))
    (tensor([5.4366, 0.0000]),)
    """
    call = called("vjp", func, tuple(range(len(primals))), has_aux, primals, {})

    def pull(cotangents: Any, retain_graph: bool = True, create_graph: bool | None = None) -> Any:
        vectors, structure = tree_flatten(cotangents)
        if structure != call.structure:
            raise RuntimeError(
                f"vjp: the cotangents should have the structure of the result, {call.structure}, and have {structure}"
            )
        for vector in vectors:
            if not isinstance(vector, Tensor):
                raise TypeError(f"vjp: the cotangents should be tensors, and one is {described(vector)}")
        return call.in_structure(_product(call, vectors, retain_graph, create_graph))

    return (call.result(), pull, call.aux()) if has_aux else (call.result(), pull)


def jacrev(
    func: Callable[..., Any], argnums: Argnums = 0, *, has_aux: bool = False, chunk_size: int | None = None
) -> Callable[..., Any]:
    """Like `torch.func.jacrev`, but elements that an output ignored do not reach the rows of this output.

    A row belongs to one element of the outputs, and ignores the others. So if a function is elementwise, and has no
    slope at one element, the other rows are 0 there. In `torch.func.jacrev`, they are NaN.

    Args:
        func: a function that returns a tensor of floating dtype, or a tuple, list or dict of such tensors.
        argnums, has_aux: the same as for `grad`, but complex tensors are refused.
        chunk_size: how many rows to compute at once, if nothing has to be ignored. None computes all rows at once.
            If ignored elements have to be followed, and under `torch.vmap`, rows are computed one by one.

    Returns:
        A function with the positional arguments of `func`. It returns the Jacobian, or `(Jacobian, aux)`. The Jacobian
        of an output of shape `s` by an argument of shape `t` has the shape `s + t`. It has the structure of the
        outputs, with the structure of the arguments inside.

    Raises:
        ValueError: if `chunk_size` is not positive.
        RuntimeError, ValueError: in the same situations as `torch.func.jacrev`, when the returned function is called.

    >>> from zero_or_nan import ignoring
    >>> ignoring.func.jacrev(lambda x: torch.where(x < 50, x.exp(), 0))(torch.tensor([1.0, 100.0]))
    tensor([[2.7183, 0.0000],
            [0.0000, 0.0000]])
    """
    if chunk_size is not None and chunk_size <= 0:
        raise ValueError(f"jacrev: chunk_size should be greater than 0, and is {chunk_size}")

    @functools.wraps(func, updated=())
    def jacobian(*args: Any) -> Any:
        return _jacobian(func, argnums, has_aux, chunk_size, args)

    return jacobian


@not_compiled
def _grad_and_value(
    name: str, func: Callable[..., Any], argnums: Argnums, has_aux: bool, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, Any]:
    call = called(name, func, argnums, has_aux, args, kwargs)
    result = tree_unflatten(call.outputs, call.structure)
    if not isinstance(result, Tensor) or result.dim() or result.is_complex():
        raise RuntimeError(
            f"{name}: the function should return a real scalar tensor, and it returned {described(result)}; return "
            "a sum or a mean, or use vjp or jacrev"
        )
    value = (call.result(), call.aux()) if has_aux else call.result()
    return call.in_structure(_product(call, [torch.ones_like(result)], None, None)), value


_BETTER_RECORDED = frozenset(("LinalgDet", "Logit"))
"""Functions whose formula is better if the gradient is recorded, as `torch.func` does: of a singular matrix, say."""


@not_compiled
def _product(call: Call, vectors: Sequence[Any], retain_graph: bool | None, create_graph: bool | None) -> list[Any]:
    """The vector-Jacobian product by each of the inputs."""
    context: contextlib.AbstractContextManager[None]
    if level() == call.level:
        vectors = list(map(together, vectors))
        context = outside_all()
    elif call.level == 0:  # `vmap` batches only the vectors, and `ignoring.grad` knows what to do
        context = contextlib.nullcontext()
    else:
        raise RuntimeError(
            "vjp: its function was called at another level of torch.vmap than its product; use jacrev, or a loop"
        )
    recording = torch.is_grad_enabled()
    if create_graph is None:
        create_graph = recording and (call.is_recorded or any(unwrapped(vector).requires_grad for vector in vectors))
    pairs = [pair for pair in zip(call.roots, vectors, strict=True) if pair[0].requires_grad]
    gradients: Sequence[Any] = [None] * len(call.inputs)
    with torch.inference_mode(False), torch.set_grad_enabled(recording), context:
        if pairs:
            roots, given = zip(*pairs, strict=True)
            records = create_graph or any(function_of(node.name()) in _BETTER_RECORDED for node in graph_from(roots))
            gradients = grad_of(roots, call.inputs, given, retain_graph, records, allow_unused=True)
            if records and not create_graph:
                gradients = [gradient if gradient is None else gradient.detach() for gradient in gradients]
            if create_graph:
                note_regions(roots, [gradient for gradient in gradients if gradient is not None])
        gradients = [
            torch.zeros_like(tensor) if gradient is None else gradient
            for gradient, tensor in zip(gradients, call.inputs, strict=True)
        ]
    return gradients if level() != call.level else list(map(under_vmap, gradients))


@not_compiled
def _jacobian(
    func: Callable[..., Any], argnums: Argnums, has_aux: bool, chunk_size: int | None, args: tuple[Any, ...]
) -> Any:
    call = called("jacrev", func, argnums, has_aux, args, {})
    for what, tensors in (("an argument", call.inputs), ("the result", call.outputs)):
        if any(tensor.is_complex() for tensor in tensors):
            raise RuntimeError(f"jacrev needs real numbers, and {what} of the function is complex; use vjp")
    by_input = [
        [part.view(output.shape + rows.shape[1:]) for part, output in zip(parts, call.outputs, strict=True)]
        for rows in _rows(call, chunk_size)
        for parts in [torch.split(rows, [output.numel() for output in call.outputs])]
    ]
    by_output = [call.in_structure(list(parts)) for parts in zip(*by_input, strict=True)]
    jacobian = tree_unflatten(by_output, call.structure)
    return (jacobian, call.aux()) if has_aux else jacobian


def _rows(call: Call, chunk_size: int | None) -> list[Tensor]:
    """All rows of the Jacobian by each input. A row belongs to one element of the outputs."""
    total = sum(output.numel() for output in call.outputs)
    size = 1 if call.level else chunk_size or max(total, 1)
    chunks = []
    for start in range(0, total, size):
        numbers = range(start, min(start + size, total))
        rows = _rows_at_once(call, numbers) if size > 1 else []
        if not rows or not is_finite(rows):
            rows = [torch.stack(parts) for parts in zip(*(_row(call, number) for number in numbers), strict=True)]
        chunks.append(rows)
    if not chunks:
        return [under_vmap(tensor.detach()).unsqueeze(0)[:0] for tensor in call.inputs]
    return [torch.cat(rows) if len(rows) > 1 else rows[0] for rows in zip(*chunks, strict=True)]


def _rows_at_once(call: Call, numbers: range) -> list[Tensor]:
    """Rows of the Jacobian by each input. A row uses the other elements of the outputs, with the factor 0."""

    def product(*vectors: Tensor) -> list[Tensor]:
        return _product(call, vectors, True, None)

    vectors, offset = [], numbers.start
    for output in call.outputs:
        units = torch.zeros(len(numbers), output.numel(), dtype=output.dtype, device=output.device)
        units.diagonal(offset).fill_(1)
        vectors.append(units.view(-1, *output.shape))
        offset -= output.numel()
    found: list[Tensor] = torch.vmap(product)(*vectors)
    return found


def _row(call: Call, number: int) -> list[Tensor]:
    """A row of the Jacobian by each input. It ignores all elements of the outputs except its own."""
    for output in call.outputs:
        if number < output.numel():
            break
        number -= output.numel()
    with torch.inference_mode(False), torch.enable_grad():
        element = output.reshape(-1)[number]
        root, one = together(element), torch.ones_like(element).detach()
    return _product(call._replace(roots=[root]), [one], True, None)
