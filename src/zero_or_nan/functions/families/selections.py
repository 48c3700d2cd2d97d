"""Functions that select elements by a condition or by indices, or that write over some of them.

The derivative of such a function writes zeros, and so does the derivative of a step function. In the first, a zero
means that the result did not depend on the element. In the second, the zero is a number. `selecting` distinguishes the
two, by the node whose derivative writes the zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...masks.cotangent import (
    Cotangent,
    NotFollowed,
    chosen,
    mask_of,
    selecting,
    step_of,
    unwrap,
    wrap,
    written_mask,
    zero_ignored,
)
from ...masks.mask import Mask, all_count, both, everywhere, expanded, full
from ..conditions import ALWAYS
from ..graph import came_as_nan, can_be_read_again
from ..numerics import numerics
from ..registry import function, rule, transfer
from .products import bilinear
from .spreading import probe

function("Where", selects=True, safe_if=ALWAYS)
function(
    """
    Gather Index IndexCopy IndexFill IndexPut IndexSelect MaskedScatter MaskedSelect Scatter SelectScatter SliceScatter
    Take
    """,
    selects=True,
    safe_if=ALWAYS,
)
function("Embedding", selects=True, safe_if=ALWAYS)
function("IndexAdd ScatterAdd", safe_if=ALWAYS)
function("DiagonalScatter EmbeddingBag IndexPutImpl Put UnsafeIndex UnsafeIndexPut UnsafeMaskedIndex", selects=True)


def _fills_with_a_tensor(node: Any) -> bool:
    """True if the number is a tensor with a gradient: a sum, which PyTorch adds in another order for a subclass."""
    return any(ahead is not None for ahead, _ in node.next_functions[1:])


function(
    "MaskedFill",
    selects=True,
    moves=lambda node: _fills_with_a_tensor(node) and can_be_read_again(node, unknown=False),
    safe_if=ALWAYS,
)

# All elements are written over, by a number or by random numbers.

function("Fill Zero", selects=True, moves=True, safe_if=ALWAYS)
function("Cauchy Exponential Geometric LogNormal Normal Random Uniform", selects=True)

# The function draws with its input as probabilities. The in-place one overwrites its input, so it selects.
function("Bernoulli", selects=lambda node: node.name() != "BernoulliBackward0")

# In place, each element is kept or replaced, and none is computed from what was there.
numerics("zero fill masked_fill masked_scatter index_copy index_fill setitem=__setitem__", replaces=True)
numerics("index gather getitem=__getitem__", moves=True)


@transfer("Where", reads=("_raw_saved_condition",))
def _where(node: Any, grad: Tensor, mask: Mask, results: Sequence[Any]) -> Sequence[Mask]:
    condition = node._saved_condition.bool()
    # None if the condition selects everything, as in clean data: then no node ahead has a mask to work on.
    taken = (None if all_count(condition) else condition, None if results[1] is None else condition.logical_not())
    return [expanded(both(each, mask), grad.shape) for each in taken]


@transfer("MaskedFill", reads=("_raw_saved_mask",), only_if=lambda node: not _fills_with_a_tensor(node))
def _masked_fill(node: Any, grad: Tensor, mask: Mask, results: Sequence[Any]) -> Sequence[Mask]:
    kept = node._saved_mask.logical_not()
    return (expanded(mask if all_count(kept) else both(kept, mask), grad.shape), None)


aten = torch.ops.aten


@rule("where")
def where(op: Any, condition: Tensor, a: Any, b: Any) -> Any:
    """Each element of the result comes from one of the sources, with its mask."""
    value = op(condition, unwrap(a), unwrap(b))
    if type(condition) is Cotangent:  # only its numbers matter
        condition = unwrap(condition)
    # The usual form, where(condition, cotangent, 0), and where(condition, 0, cotangent).
    for source, other, taken in ((a, b, True), (b, a, False)):
        if type(source) is Cotangent and _is(torch.nan, other):  # as if it were multiplied by NaN
            return zero_ignored(value, expanded(mask_of(source), value.shape))
        if type(source) is Cotangent and _is(0, other):
            mask = mask_of(source)
            if selecting(source):
                through = chosen(condition, source, taken)
                if not (torch.is_grad_enabled() and all_count(through)):  # what is recorded is differentiated again
                    mask = both(mask, through)
            return Cotangent(value, expanded(mask, value.shape))
    beside = a if type(a) is Cotangent else b
    mask_a, mask_b = written_mask(a, beside), written_mask(b, beside)
    if mask_a is None and mask_b is None:
        return Cotangent(value)
    # A plain number in place of an ignored element counts, a plain zero does not.
    mask_a = mask_a if type(a) is Cotangent or mask_b is None or selecting(beside) else _not_zero(a, value) | mask_b
    mask_b = mask_b if type(b) is Cotangent or mask_a is None or selecting(beside) else _not_zero(b, value) | mask_a
    return Cotangent(value, torch.where(condition, full(mask_a, value), full(mask_b, value)).expand(value.shape))


def _is(number: float, thing: Any) -> bool:
    """Whether a thing is this number, also as a plain tensor without dimensions."""
    if type(thing) is Cotangent or isinstance(thing, Tensor) and thing.dim():
        return False
    return bool(thing != thing) if number != number else bool(thing == number)


def _not_zero(thing: Any, value: Tensor) -> Tensor:
    return thing != 0 if isinstance(thing, Tensor) else everywhere(thing != 0, value)


@rule("masked_fill")
def masked_fill(op: Any, grad: Any, filled: Tensor, fill: Any) -> Any:
    """A zero over an ignored element leaves it ignored, whatever the zero means. Another number counts."""
    value = op(unwrap(grad), unwrap(filled), unwrap(fill))
    mask = mask_of(grad)
    if unwrap(fill) != 0:
        mask = mask if mask is None else mask | filled
    elif selecting(grad):
        mask = both(mask, chosen(filled, grad, False))
    return Cotangent(value, expanded(mask, value.shape))


@rule(
    *"""
    as_strided_scatter diagonal_scatter index_add index_copy index_fill index_put _index_put_impl put scatter
    scatter_add select_scatter slice_scatter _unsafe_index_put
    """.split()
)
def put_in(op: Any, base: Any, *args: Any, **kwargs: Any) -> Any:
    """A base in which elements are overwritten, or to which elements are added. Both may be cotangents.

    The operator itself shows which elements of the result count: it finds a NaN in place of each one that counts.
    """
    value = op(unwrap(base), *unwrap(args), **unwrap(kwargs))
    if kwargs.get("reduce") is not None:
        raise NotFollowed("is not linear with a reduction")
    beside = next(thing for thing in (base, *args, *kwargs.values()) if type(thing) is Cotangent)
    names = [argument.name for argument in op._schema.arguments[1:]]

    def marked(name: str, thing: Any) -> Any:
        if name == "value" and not isinstance(thing, Tensor):
            counts = written_mask(thing, beside)
            return torch.nan if counts is None or counts else 0.0
        if not isinstance(thing, Tensor) or not (thing.is_floating_point() or thing.is_complex()):
            return thing
        return probe(written_mask(thing, beside), unwrap(thing))

    given = {name: marked(name, thing) for name, thing in kwargs.items()}
    found = op(marked("self", base), *map(marked, names, args), **given)
    return Cotangent(value, found.isnan())


@rule("masked_scatter")
def masked_scatter(op: Any, base: Any, where: Tensor, source: Any) -> Any:
    """The base, with the source's elements, in order, where `where` is True.

    A derivative of PyTorch's own writes into the base, whose strides it keeps. For a subclass, it calls this operator,
    whose result is always contiguous.
    """
    result = put_in(op, base, where, source)
    step = step_of((base, source))
    if step is None or step.is_anothers:
        return result
    return Cotangent(torch.empty_like(unwrap(base)).copy_(result.value), result.mask)


@rule("masked_select")
def masked_select(op: Any, grad: Any, where: Tensor) -> Any:
    """Each selected element keeps its mask."""
    return Cotangent(op(grad.value, where), None if grad.mask is None else op(grad.mask, where))


@rule("zeros_like", "zero")
def zeros_like(op: Any, grad: Any, **kwargs: Any) -> Any:
    """Zeros that overwrite a cotangent, or that are the derivative of a step function."""
    value = op(unwrap(grad), **kwargs)
    if not (value.is_floating_point() or value.is_complex()):
        return value
    step = step_of((grad,))
    if selecting(grad):
        return Cotangent(value, everywhere(False, value))
    if step is not None and step.makes_up_zeros:  # a NaN that came in was used, though its derivative is 0
        unknown = came_as_nan(step.node, value)
        return Cotangent(value, everywhere(False, value) if unknown is None else both(unknown, mask_of(grad)))
    return Cotangent(value, None if step is not None and step.is_anothers else mask_of(grad))


@rule("new_zeros")
def new_zeros(op: Any, grad: Any, *args: Any, **kwargs: Any) -> Any:
    """The base that a derivative puts selected elements into."""
    value = op(unwrap(grad), *args, **kwargs)
    if not (value.is_floating_point() or value.is_complex()):
        return value
    return Cotangent(value, everywhere(False, value) if selecting(grad) else None)


@rule("new_empty", "new_empty_strided", "empty_like")
def uninitialised(op: Any, grad: Any, *args: Any, **kwargs: Any) -> Any:
    """Counts until something is written there."""
    return wrap(op(unwrap(grad), *args, **kwargs))


@rule("fill")
def fill(op: Any, grad: Any, number: Any) -> Any:
    """The same as `zeros_like` if the number is 0. Another number counts."""
    value = op(unwrap(grad), unwrap(number))
    zero = selecting(grad) and unwrap(number) == 0
    return Cotangent(value, everywhere(False, value) if zero else None)


@rule("_unsafe_masked_index")
def masked_index(op: Any, base: Any, where: Tensor, indices: Any, number: Any) -> Any:
    """Elements at indices, and a number where `where` is False. So the derivative leaves out what was not added."""
    read = aten._unsafe_index(base, _in_range(base, indices))
    value = unwrap(read).masked_fill(where.logical_not(), number)
    if number != 0:
        return Cotangent(value)
    return Cotangent(value, expanded(both(where, mask_of(read)), value.shape))


@rule("_unsafe_masked_index_put_accumulate")
def masked_index_put(op: Any, base: Any, where: Tensor, indices: Any, source: Any) -> Any:
    """Elements are added where `where` is True. What is left out counts: the padding row of an embedding was used."""
    added = unwrap(source).masked_fill(where.logical_not(), 0)
    if type(source) is Cotangent:
        added = Cotangent(added, expanded(source.mask, added.shape), source.step)
    return aten._unsafe_index_put(base, _in_range(base, indices), added, True)


def _in_range(base: Tensor, indices: Sequence[Any]) -> list[Any]:
    """Indices, moved into the range of a tensor."""
    return [
        None if index is None else index.clamp(0, max(size - 1, 0))
        for index, size in zip(indices, base.shape, strict=False)
    ]


# Rows that are looked up in a table.


@rule("embedding_dense_backward")
def looked_up(op: Any, grad: Any, indices: Tensor, rows: int, padding: int, *args: Any) -> Any:
    """Rows that were not looked up are ignored. The padding row was looked up: its gradient is 0 by convention.

    Row 2 of a table is looked up twice, row 0 once, row 1 never. The loss ignores the last of the three results:

    >>> from zero_or_nan.ignoring import Cotangent
    >>> g = Cotangent(torch.tensor([[1.0], [2.0], [0.0]]), mask=torch.tensor([[True], [True], [False]]))
    >>> to_table = torch.ops.aten.embedding_dense_backward(g, torch.tensor([2, 0, 2]), 3, -1, False)
    >>> to_table.value.flatten().tolist(), to_table.mask.flatten().tolist()
    ([2.0, 0.0, 1.0], [True, False, True])
    """
    value = op(grad.value, indices, rows, padding, *args)
    return Cotangent(value, op(probe(grad.mask, grad.value), indices, rows, -1, *args).isnan())


@rule("_embedding_bag_backward", "_embedding_bag_dense_backward")
def embedding_bag_backward(op: Any, grad: Any, *args: Any) -> Any:
    """Linear in the cotangent and, if there are any, in the weights of the samples. Other rows are ignored."""
    names = [argument.name for argument in op._schema.arguments[1:]]
    named = dict(zip(names, args, strict=False))
    if named.get("sparse"):
        return op(grad.value, *args)
    place = names.index("per_sample_weights")

    def apply(cotangent: Tensor, weights: Tensor | None) -> Tensor:
        result: Tensor = op(cotangent, *args[:place], weights, *args[place + 1 :])
        return result

    weights = args[place]
    counted = full(grad.mask, grad.value).to(grad.value.dtype)
    mask = apply(counted, None if weights is None else torch.ones_like(weights)) != 0
    value = apply(grad.value, None) if weights is None else bilinear(apply, grad, weights)
    return zero_ignored(value, mask)


@rule("_embedding_bag_per_sample_weights_backward")
def embedding_bag_weights_backward(op: Any, grad: Any, table: Tensor, indices: Tensor, *args: Any) -> Any:
    """The product of a bag's cotangent with the row that was looked up."""

    def apply(cotangent: Tensor, rows: Tensor) -> Tensor:
        result: Tensor = op(cotangent, rows, indices, *args)
        return result

    counted = full(grad.mask, grad.value).to(grad.value.dtype)
    return zero_ignored(bilinear(apply, grad, table), apply(counted, torch.ones_like(table)) != 0)
