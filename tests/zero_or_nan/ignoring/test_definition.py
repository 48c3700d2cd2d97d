"""The page *What counts as ignored* is the rule: each row of its table, held against the gradient itself."""

import math
from pathlib import Path

import pytest
import torch

from helpers.counting import what_counts
from tools.steps.read import read
from zero_or_nan import ignoring
from zero_or_nan.functions.graph import function_of, graph_from
from zero_or_nan.ignoring import FUNCTIONS

PAGE = Path(__file__).parents[3] / "chapters" / "what-counts-as-ignored.md"


def rows_of_the_page():
    """What its cells hand to `what_counts`."""
    rows = []
    names = {"__name__": "page"}
    for cell in read(PAGE).cells:
        if cell.cell_type == "code" and "hide-cell" not in cell.metadata.get("tags", []):
            exec(cell.source, names)
            names["what_counts"] = rows.extend
    return rows


ROWS = rows_of_the_page()
TITLES = [f"{row[0]}, {row[2]}" for row in ROWS]


def through_an_infinite_slope(row):
    """Function of numbers of which the last has an infinite derivative: its cotangent shows, 0 or not."""
    _, function, _, values, _ = row
    z = torch.tensor([1.0] * (len(values) - 1) + [0.0], requires_grad=True)
    y = torch.tensor(values, dtype=torch.float32) + (z.sqrt() - z.detach().sqrt())
    return z, function(y)


@pytest.mark.parametrize("row", ROWS, ids=TITLES)
def test_a_used_entry_keeps_an_undefined_slope_and_an_ignored_one_does_not(row, capsys):
    used, counts = what_counts([row])
    assert used.tolist() == counts.tolist()
    z, result = through_an_infinite_slope(row)
    (ours,) = ignoring.grad(result.sum(), z, retain_graph=True)
    (plain,) = torch.autograd.grad(result.sum(), z)
    assert not math.isfinite(plain[-1])
    assert math.isfinite(ours[-1]) is not bool(used)
    assert ours[:-1].nan_to_num(7).tolist() == plain[:-1].nan_to_num(7).tolist()


KIN = frozenset(
    """
    AdaptiveAvgPool2D AdaptiveAvgPool3D AdaptiveMaxPool3D Addbmm Addmv Addr Aminmax AsStrided AvgPool3D Baddbmm
    Bernoulli Bmm Cauchy Chunk ChunkBackwardAutogradNestedTensor0 ClampMax ClampMin CopyBackwards CudnnGridSampler
    DiagonalScatter EfficientAttention Exponential FakeQuantizeLearnablePerChannelAffine
    FakeQuantizeLearnablePerTensorAffine FakeQuantizePerChannelAffineCachemask
    FakeQuantizePerTensorAffineCachemaskTensorQparams FftR2C Fill FlashAttention FractionalMaxPool2D
    FractionalMaxPool3D Geometric GridSampler2D GridSampler3D GroupedMm Im2Col IndexPutImpl IndexReduce LogNormal
    LuUnpack MaskedSoftmax MaxPool2D MaxPool3DWithIndices MaxUnpool2D MaxUnpool3D Mm NarrowCopy NllLoss2D Normal
    Polar Put Random SelectBackwardAutogradNestedTensor0 SparseAddmm SparseMask SparseMmReduceImpl SplitWithSizes
    SplitWithSizesBackwardAutogradNestedTensor0 UnbindBackwardAutogradNestedTensor0 Uniform UnsafeIndex
    UnsafeIndexPut UnsafeMaskedIndex UnsafeSplit UnsafeSplitWithSizes UpsampleBicubic2D UpsampleBicubic2DAa
    UpsampleBilinear2D UpsampleBilinear2DAa UpsampleLanczos2DAa UpsampleNearest2D UpsampleNearest3D
    UpsampleNearestExact1D UpsampleNearestExact2D UpsampleNearestExact3D UpsampleTrilinear3D Zero
    """.split()
)
"""Of a kind with one that has a row: in another dimension, in place, grouped, at random, nested, on another kernel."""


def test_every_function_that_selects_has_a_row():
    seen = set()
    for row in ROWS:
        y = torch.tensor(row[3], dtype=torch.float32, requires_grad=True)
        seen |= {function_of(node.name()) for node in graph_from([row[1](y).sum()])}
    selecting = {name for name, record in FUNCTIONS.items() if record.selects and isinstance(name, str)}
    assert selecting - seen - KIN == set()
    assert KIN & seen == set() and len(selecting & seen) > 50
