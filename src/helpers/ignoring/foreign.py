"""Nodes that run code which is not PyTorch's own operators: plain tensors go in, and a cotangent comes out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction

from .cotangent import LOST, Cotangent, plain, wrapped

TRANSPARENT = frozenset({"BackwardHookFunctionBackward", "CheckpointFunctionBackward", "_DDPSinkBackward"})
"""PyTorch's own functions that only hand a cotangent on."""


def guard(nodes: Iterable[Any]) -> list[Any]:
    """Hooks by which a foreign `autograd.Function` or compiled region gets plain tensors and is told of in `LOST`.

    Returns:
        The handles, to be removed after the pass.
    """
    return [
        handle
        for node in nodes
        if isinstance(node, BackwardCFunction) and node.name() not in TRANSPARENT
        for handle in _guard(node)
    ]


def _guard(node: Any) -> list[Any]:
    name = node.name().removesuffix("Backward")

    def before(cotangents: tuple[Any, ...]) -> tuple[Any, ...]:
        if any(type(c) is Cotangent and c.ignored is not None and bool(c.ignored.any()) for c in cotangents):
            LOST.add(name)
        return tuple(plain(c) for c in cotangents)

    def after(results: tuple[Any, ...], cotangents: tuple[Any, ...]) -> tuple[Any, ...]:
        if any(isinstance(r, Tensor) and r.layout is torch.strided and not bool(r.isfinite().all()) for r in results):
            LOST.add(name)
        return tuple(wrapped(r) for r in results)

    return [node.register_prehook(before), node.register_hook(after)]

