"""Nested tensors: some of their nodes have special names in PyTorch."""

from __future__ import annotations

from ..conditions import ALWAYS
from ..registry import function

function(
    """
    ChunkBackwardAutogradNestedTensor0 SelectBackwardAutogradNestedTensor0
    SplitWithSizesBackwardAutogradNestedTensor0 UnbindBackwardAutogradNestedTensor0
    """,
    selects=True,
    moves=True,
    safe_if=ALWAYS,
)
function(
    """
    NestedFromPaddedTensor NestedGetValues NestedViewFromJagged SqueezeBackwardAutogradNestedTensor0
    SqueezeBackwardAutogradNestedTensor1 ToPaddedTensor ViewBackwardAutogradNestedTensor0
    """,
    moves=True,
    safe_if=ALWAYS,
)
