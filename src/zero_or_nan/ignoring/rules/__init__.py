"""One rule per operator that appears in backward, in files by what the operator does to a mask."""

from . import (
    attention,
    bags,
    convolutions,
    distances,
    fused,
    linear_algebra,
    masks_alone,
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
    "convolutions",
    "distances",
    "fused",
    "linear_algebra",
    "masks_alone",
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
