"""Fused derivatives: PyTorch's own decompositions turn them into operators that have rules.

Benefit: one line registers a fused derivative, and its formula is PyTorch's. Downside: a decomposition is slow. It runs
only if the fused result has a NaN. Otherwise the result is right, and `masks` gives its mask.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...masks.cotangent import Cotangent, mask_of, prefer_exact, unwrap, wrap
from ...masks.mask import full
from ...masks.numbers import any_nan
from ..record import Rule
from ..registry import rule

_names: list[str] = []


@functools.cache
def _decompositions() -> Any:
    """PyTorch's table, imported when it is first needed."""
    from torch._decomp import get_decompositions

    aten = torch.ops.aten
    return get_decompositions([getattr(aten, name) for name in _names if hasattr(aten, name)])


def fused(
    *names: str,
    since: str = "2.6",
    masks: Callable[..., tuple[Tensor, ...]] | None = None,
    set_aside: Callable[[Tensor, tuple[Any, ...]], tuple[Any, ...]] | None = None,
) -> Rule:
    """Register the rule of some fused derivatives.

    Args:
        names: the operators.
        since: the same as for `rule`.
        masks: gives the masks of the results, as `masks(mask, *args)`, from the mask of the cotangent and the other
            arguments. Without it, the decomposition runs whenever something is ignored.
        set_aside: gives the arguments with 0 in place of rows (or samples) that the loss ignored as a whole.

    Returns:
        The rule.
    """
    _names.extend(names)

    def decomposed(op: Any, *args: Any, **kwargs: Any) -> Any:
        """Plain PyTorch's result where it is finite, and the decomposition's elsewhere."""
        if all(mask_of(arg) is None for arg in args):
            return wrap(op(*unwrap(args), **unwrap(kwargs)))
        mask = mask_of(args[0])
        usual = given = unwrap(args)
        if mask is not None and set_aside is not None:
            given = set_aside(mask, usual)
        exact = op(*given, **unwrap(kwargs))
        results = exact if isinstance(exact, tuple) else (exact,)
        if masks is not None and not any_nan(results):
            mixed = tuple(
                result if result is None else Cotangent(result, counts.expand(result.shape))
                for result, counts in zip(results, masks(full(mask, given[0]), *args[1:]), strict=False)
            )
            return mixed if isinstance(exact, tuple) else mixed[0]
        if given is not usual:  # `prefer_exact` needs plain PyTorch's own result
            exact = op(*usual, **unwrap(kwargs))
        return prefer_exact(exact, _decompositions()[op](*args, **kwargs))

    return rule(*names, since=since)(decomposed)
