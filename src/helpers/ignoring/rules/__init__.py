"""One rule per operator that appears in backward, in files by what the operator does to a mask."""

from . import fused, pointwise, products, reductions, selections, shapes, spreading

__all__ = ["fused", "pointwise", "products", "reductions", "selections", "shapes", "spreading"]
