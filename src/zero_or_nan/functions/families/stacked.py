"""All layers of a recurrent net in one kernel, as on GPUs. If it gives NaN, it runs again without the ignored steps.

Only the kernel can read what its forward run saved. So the forward run is also repeated, with 0 for ignored steps.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...masks.cotangent import Cotangent, NotFollowed, mask_of, prefer_exact, unwrap, wrap
from ...masks.mask import all_count, anywhere, only
from ...masks.numbers import any_nan
from ..conditions import ALWAYS, MODERATE
from ..registry import function, rule
from .packing import places
from .recurrent import back_in_time

# result3 is the kernel's reserve, in bytes. result4 holds all weights, one after another.
function(
    "CudnnRnn MiopenRnn",
    safe_if=MODERATE,
    safe_if_saved={"result3": ALWAYS, "result4": ALWAYS, "dropout_state": ALWAYS},
)

_GRADS = ("grad_output", "grad_hy", "grad_cy")


@rule("_cudnn_rnn_backward", "miopen_rnn_backward")
def rnn_backward(op: Any, *args: Any, **kwargs: Any) -> Any:
    """The gradients of the input, of the first hidden and cell states, and a list with those of the weights."""
    named = {a.name: value for a, value in zip(op._schema.arguments, args, strict=False)} | kwargs
    counts, given = _reached(named), unwrap(named)
    exact = op(**given | {"reserve": given["reserve"].clone()})  # the kernel writes into it
    if counts is None:
        return wrap(exact)
    if not _has_nan(exact):
        return _with_masks(exact, counts, given)
    if given["train"] and given["dropout"] and given["num_layers"] > 1:
        raise NotFollowed("has dropout between its layers, which would drop others now")
    rerun = exact if all_count(counts) else _without(op, given, counts)
    if _has_nan(rerun) and _has_parts(named):
        raise NotFollowed("mixes what counts of a step with what is ignored")
    return prefer_exact(exact, _with_masks(rerun, counts, given))


def _has_nan(results: Any) -> bool:
    return any_nan(results[:3]) or any_nan(results[3])


def _reached(named: dict[str, Any]) -> Tensor | None:
    """Which steps (rows) of which sequences (columns) the cotangents reach; None for all."""
    output, *states = given = [mask_of(named[name]) for name in _GRADS]
    if any(mask is None and named[name] is not None for name, mask in zip(_GRADS, given, strict=True)):
        return None
    batch, device = named["hx"].shape[1], named["hx"].device
    used = None if output is None else anywhere(output, -1)
    if named["batch_sizes"]:
        flat, used = used, torch.zeros(len(named["batch_sizes"]), batch, dtype=torch.bool, device=device)
        if flat is not None:
            used[_places(named)] = flat
    elif used is None:
        steps = named["input"].shape[1 if named["batch_first"] else 0]
        used = torch.zeros(steps, batch, dtype=torch.bool, device=device)
    elif named["batch_first"]:
        used = used.t()
    found = back_in_time(used, [anywhere(mask, (0, -1)) for mask in states if mask is not None])
    return anywhere(found, 0).expand(found.shape) if named["bidirectional"] else found


def _has_parts(named: dict[str, Any]) -> bool:
    """True if a part of a step, or of a last state, counts and another part is ignored. NaN may be in either part."""
    masks = ((mask_of(named[name]), dims) for name, dims in zip(_GRADS, (-1, (0, -1), (0, -1)), strict=True))
    return any(mask is not None and bool((mask != anywhere(mask, dims, True)).any()) for mask, dims in masks)


def _places(given: dict[str, Any]) -> tuple[Tensor, ...]:
    """The step and the sequence of each element of a packed input."""
    return tuple(place.to(given["hx"].device) for place in places(torch.tensor(given["batch_sizes"])))


def _of_input(counts: Tensor, given: dict[str, Any]) -> Tensor:
    """The mask in the order of the input, with a dimension for its features."""
    if given["batch_sizes"]:
        counts = counts[_places(given)]
    elif given["batch_first"]:
        counts = counts.t()
    return counts.unsqueeze(-1)


def _without(op: Any, given: dict[str, Any], counts: Tensor) -> Any:
    """Run forward and backward once more, with 0 for the steps that the cotangents don't reach."""
    states = {name: given[name] for name in ("hx", "cx") if given[name] is not None}
    sequences = anywhere(counts, 0).unsqueeze(-1)
    given = given | {name: only(sequences, state) for name, state in states.items()}
    given["input"] = only(_of_input(counts, given), given["input"])
    forward = getattr(torch.ops.aten, op._schema.name.removeprefix("aten::").removesuffix("_backward")).default
    results = forward(**{argument.name: given[argument.name] for argument in forward._schema.arguments})
    return op(**given | {"output": results[0], "reserve": results[3]})


def _with_masks(results: Any, counts: Tensor, given: dict[str, Any]) -> Any:
    """The results with masks, from the steps that count. All elements of a weight count if any step does."""
    sequences = anywhere(counts, 0).unsqueeze(-1)
    masks = _of_input(counts, given), sequences, sequences
    *of_sequences, weights = results
    return (
        *(v if v is None else Cotangent(v, mask.expand(v.shape)) for v, mask in zip(of_sequences, masks, strict=True)),
        [Cotangent(value, anywhere(counts).expand(value.shape)) for value in weights],
    )
