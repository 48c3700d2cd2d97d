"""Checks of the rules and derivatives that users write, so that a warning reports a mistake in them as such."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointError

from ..masks.cotangent import NotFollowed, unwrap
from ..masks.trees import tree_leaves, tree_map_only


class RuleFailed(Exception):
    """A mistake in a rule or a derivative that a user wrote."""


def checked(implementation: Callable[..., Any], check: Callable[..., None] = lambda *_: None) -> Callable[..., Any]:
    """A user's rule or derivative, wrapped so that a mistake in it raises `RuleFailed`."""

    here = threading.local()

    @functools.wraps(implementation)
    def called(first: Any, *args: Any, **kwargs: Any) -> Any:
        running: set[int] = vars(here).setdefault("running", set())
        if id(first) in running:  # endless recursion
            raise RuleFailed("it calls its own operator on a Cotangent; give that unwrap(cotangent)")
        running.add(id(first))
        try:
            result = implementation(first, *args, **kwargs)
            check(first, args, kwargs, result)
        except (NotFollowed, CheckpointError):
            raise
        except Exception as error:
            raise RuleFailed(f"{type(error).__name__}: {error}") from error
        finally:
            running.discard(id(first))
        return result

    return called


def result_check() -> Callable[..., None]:
    """A check of the results of one rule.

    Plain PyTorch's result shows which shape, dtype and device are right. For arguments and a result of the same kinds
    as before, plain PyTorch does not run again.
    """
    known: set[Any] = set()

    def check(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        _check_masks(op, result)
        kinds = repr([op, _kinds(args), _kinds(tuple(kwargs.items())), _kinds(result)])
        if kinds in known:
            return
        for exact, ours in zip(tree_leaves(op(*unwrap(args), **unwrap(kwargs))), tree_leaves(result), strict=True):
            if isinstance(exact, torch.Tensor) and isinstance(ours, torch.Tensor) and _kinds(exact) != _kinds(ours):
                raise TypeError(f"it returned {_described(ours)}, and the operator returns {_described(exact)}")
        if len(known) >= MANY_KINDS:
            known.clear()
        known.add(kinds)

    return check


MANY_KINDS = 1000
"""For how many kinds of arguments a rule's check is remembered."""


def _kinds(given: Any) -> Any:
    """Arguments or results with each tensor replaced by its shape, dtype and device: its numbers don't matter."""
    return tree_map_only(torch.Tensor, lambda tensor: (tensor.shape, tensor.dtype, tensor.device), given)


def _described(tensor: torch.Tensor) -> str:
    return f"a tensor of shape {tuple(tensor.shape)}, {tensor.dtype}, on {tensor.device}"


def _check_masks(op: Any, result: Any) -> None:
    """Check that a rule returned cotangents, with masks that fit.

    Raises:
        TypeError, ValueError: if it did not.
    """
    results = list(result) if isinstance(result, (tuple, list)) else [result]
    kinds = [str(returned.type) for returned in op._schema.returns]
    if "Tensor[]" not in kinds and len(results) != len(kinds):
        raise TypeError(f"it returned {len(results)} results, and the operator has {len(kinds)}")
    for number, part in enumerate(results):
        if part is None or isinstance(part, torch.Tensor) and not (part.is_floating_point() or part.is_complex()):
            if part is None and number < len(kinds) and kinds[number] == "Tensor":
                raise TypeError("it returned None in place of a Cotangent")
            continue
        if not hasattr(part, "mask") or not hasattr(part, "value"):
            raise TypeError(f"it returned a {type(part).__name__} in place of a Cotangent")
        if part.mask is None:
            continue
        if part.mask.dtype is not torch.bool:
            raise TypeError(f"its mask is of dtype {part.mask.dtype}, and has to be bool")
        if part.mask.shape != part.value.shape:
            raise ValueError(f"its mask has shape {tuple(part.mask.shape)}, and its value {tuple(part.value.shape)}")
        if bool((part.value != 0).logical_and_(part.mask.logical_not()).any()):
            raise ValueError("it calls an element ignored that is not 0")
