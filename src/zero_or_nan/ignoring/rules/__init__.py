"""One rule per operator that appears in backward, in files by what the operator does to a mask."""

from . import (
    attention,
    bags,
    distances,
    flex,
    fused,
    grouped,
    linear_algebra,
    pointwise,
    products,
    recurrent,
    reductions,
    selections,
    shapes,
    spreading,
    stepwise,
    transforms,
)

__all__ = [
    "attention",
    "bags",
    "distances",
    "flex",
    "fused",
    "grouped",
    "linear_algebra",
    "pointwise",
    "products",
    "recurrent",
    "reductions",
    "selections",
    "shapes",
    "spreading",
    "stepwise",
    "transforms",
]
