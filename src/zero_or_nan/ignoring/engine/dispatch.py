"""Runs each operator that a derivative calls on a cotangent: finds its rule, and follows the rule.

This file never changes when an operator is added.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from ...functions.record import RULES, RULES_OF_SPARSE
from ...functions.registry import is_own
from ...masks.cotangent import Cotangent, NotFollowed, Run, ignores, is_finite, step_of, unwrap, wrap
from ...masks.in_place import in_place, remember_view
from ...masks.numbers import is_sparse, values_of
from .higher import all_saved, remember_all, step_here


def dispatch(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operator, and let the operators that its rule calls see which tensors are conjugate."""
    for arg in args:
        if isinstance(arg, Tensor) and arg.is_complex():
            with _conjugates_seen():
                return _dispatch(op, args, kwargs)
    return _dispatch(op, args, kwargs)


Cotangent.handler = staticmethod(dispatch)


def _conjugates_seen() -> Any:
    """A context inside of `__torch_dispatch__` in which operators see the conjugate and the negative bit of a tensor.

    There, PyTorch leaves out what it has done before it calls `__torch_dispatch__`. Most operators then read a
    conjugate tensor as if it was not conjugate, but those of a matrix product arrive with such a tensor.
    """
    left_out = torch._C._dispatch_tls_local_exclude_set()
    for key in (torch._C.DispatchKey.Conjugate, torch._C.DispatchKey.Negative):
        left_out = left_out.remove(key)
    return torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), left_out)


def _dispatch(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operator. Its results have masks, and belong to the same derivative call as its arguments."""
    step = step_of(args) or step_of(kwargs.values())
    if step is None and all_saved(*args, *kwargs.values()):  # outside of a pass these are plain tensors
        step = step_here()
        if step is None:
            return op(*unwrap(args), **unwrap(kwargs))
    if step is not None and torch.is_grad_enabled():
        remember_all((*args, *kwargs.values()))
    mutable, view, _ = _facts(op)
    if mutable:
        return in_place(op, args, kwargs, step, follow)
    result = follow(op, args, kwargs, step)
    if view:
        remember_view(result, op, args, kwargs)
    return result


@functools.cache
def _facts(op: Any) -> tuple[bool, bool, Any]:
    """Whether an overload writes into arguments, whether it gives a view, and the operator that has rules."""
    return op._schema.is_mutable, op.is_view, op.overloadpacket


def follow(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], step: Run | None) -> Any:
    """Run an out-of-place operator by its rule, by the operators that it is composed of, or as plain PyTorch does."""
    packet = _facts(op)[2]
    rule = RULES.get(packet)
    is_of_sparse = any(type(arg) is Cotangent and is_sparse(arg.value) for arg in args)
    if is_of_sparse and (rule is None or is_own(rule)):  # a user's rule is for all cotangents
        rule = RULES_OF_SPARSE.get(packet)
    if rule is not None:
        try:
            return _belonging(rule(op, *args, **kwargs), step)
        except Exception as error:
            result = op(*unwrap(args), **unwrap(kwargs))  # if plain PyTorch raises, so does this
            if step is not None:
                step.failed(op._schema.name, error)
            elif not isinstance(error, NotFollowed):
                raise
            return _belonging(wrap(result), step)
    if _is_composite(op):  # if a rule calls it, PyTorch has not decomposed it yet
        return op.decompose(*args, **kwargs)
    result = op(*unwrap(args), **unwrap(kwargs))
    if step is not None and _any_float(result) and (ignores((*args, *kwargs.values())) or not is_finite(result)):
        step.failed(op._schema.name, NotFollowed("no rule"))
    return _belonging(wrap(result), step)


def has_rule(op: Any) -> bool:
    """True if a rule says what an operator does to masks, or the rules of what it is composed of."""
    return op.overloadpacket in RULES or _is_composite(op)


@functools.cache
def _is_composite(op: Any) -> bool:
    """True if the operator is only composed of other operators."""
    return bool(op.has_kernel_for_dispatch_key("CompositeImplicitAutograd"))


def _belonging(result: Any, step: Run | None) -> Any:
    """The result, after noting the derivative call on each of its cotangents."""
    result_values = result if type(result) is Cotangent else values_of(result)
    if type(result_values) is Cotangent:
        result_values.step = step
    elif isinstance(result, (tuple, list)):
        for part in result:
            _belonging(part, step)
    return result


def _any_float(result: Any) -> bool:
    if isinstance(result, Tensor):
        return result.is_floating_point() or result.is_complex()
    return isinstance(result, (tuple, list)) and any(_any_float(item) for item in result)
