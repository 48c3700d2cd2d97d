"""One rule per operator that appears in backward, in files by what the operator does to a mask."""

from . import (
    bags,
    distances,
    fused,
    linear_algebra,
    pointwise,
    products,
    reductions,
    selections,
    shapes,
    spreading,
    stepwise,
    transforms,
)

__all__ = [
    "bags",
    "distances",
    "fused",
    "linear_algebra",
    "pointwise",
    "products",
    "reductions",
    "selections",
    "shapes",
    "spreading",
    "stepwise",
    "transforms",
]
