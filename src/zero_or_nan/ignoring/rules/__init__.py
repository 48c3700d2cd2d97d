"""One rule per operator that appears in backward, in files by what the operator does to a mask."""

from . import (
    attention,
    bags,
    chunked,
    distances,
    fused,
    linear_algebra,
    pointwise,
    products,
    recurrent,
    reductions,
    sampling,
    selections,
    shapes,
    spreading,
    stepwise,
    transforms,
)

__all__ = [
    "attention",
    "bags",
    "chunked",
    "distances",
    "fused",
    "linear_algebra",
    "pointwise",
    "products",
    "recurrent",
    "reductions",
    "sampling",
    "selections",
    "shapes",
    "spreading",
    "stepwise",
    "transforms",
]
