"""One record for each forward function: what it selects, and what of what it saved its derivative multiplies by.

A function that is missing here selects nothing, and its graph is never taken for harmless. Those with a derivative of
our own are recorded beside it, in `rules`.
"""

from __future__ import annotations

from typing import Any

from .conditions import ALWAYS, AWAY_FROM_ZERO, FINITE, MODERATE
from .distributed import BORDERS
from .graph import can_be_read_again
from .registry import function
from .sparse import has_sparse_factor

# Linear, and every entry goes into the result.

function(
    """
    Alias Cat Clone Expand Flip Permute PixelShuffle PixelUnshuffle Repeat ReshapeAlias Roll Squeeze Stack Sum T
    Transpose UnsafeView Unsqueeze View
    """,
    moves=True,
    safe_if=ALWAYS,
)
function(
    """
    AccumulateGrad AsStridedScatter Cumsum DiagEmbed IndexAdd Lift Neg ReflectionPad1D ReflectionPad2D ReflectionPad3D
    Mean ReplicationPad1D ReplicationPad2D ReplicationPad3D ScatterAdd ToCopy
    """,
    safe_if=ALWAYS,
)
function(" ".join(BORDERS), moves=True, safe_if=ALWAYS)
function("Add", moves=lambda node: getattr(node, "_saved_alpha", 1) == 1, safe_if=ALWAYS, scalars=("alpha",))
function("Sub Rsub", safe_if=ALWAYS, scalars=("alpha",))
function("LeakyRelu", safe_if=ALWAYS, scalars=("negative_slope",))

# A part of the entries, in places that don't depend on their values.

function(
    """
    ConstantPadNd Diagonal Fill Select Slice Split SplitWithSizes Tril Triu Unbind UnsafeSplit UnsafeSplitWithSizes Zero
    """,
    selects=True,
    moves=True,
    safe_if=ALWAYS,
)
function("Where", selects=True, safe_if=ALWAYS)
# Of nested tensors; PyTorch gives some of their nodes names of their own.
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


def _fills_with_a_tensor(node: Any) -> bool:
    """Whose gradient is a sum, which PyTorch takes in another order for a subclass."""
    values = node.next_functions[1:]
    return any(ahead is not None for ahead, _ in values) and can_be_read_again(node, unknown=False)


function("MaskedFill", selects=True, moves=_fills_with_a_tensor, safe_if=ALWAYS)
function(
    """
    AsStrided AvgPool2D AvgPool3D AdaptiveAvgPool2D AdaptiveAvgPool3D CopyBackwards Embedding
    Gather Index IndexCopy IndexFill IndexPut IndexSelect MaskedScatter MaskedSelect Scatter SelectScatter
    SliceScatter Take Trace Unfold UpsampleBilinear2D UpsampleNearest1D UpsampleNearest2D UpsampleNearest3D
    """,
    selects=True,
    safe_if=ALWAYS,
)
function(
    """
    Cauchy Chunk Complex DiagonalScatter EmbeddingBag Exponential FftR2C Geometric Im2Col
    IndexPutImpl LogNormal LuUnpack Normal Polar Put Random Uniform UnsafeIndex UnsafeIndexPut UnsafeMaskedIndex
    UpsampleBicubic2D UpsampleBicubic2DAa UpsampleBilinear2DAa UpsampleLinear1D UpsampleNearestExact1D
    UpsampleNearestExact2D UpsampleNearestExact3D UpsampleTrilinear3D ViewAsReal
    """,
    selects=True,
)
# The function draws by its input, the in-place one draws over it.
function("Bernoulli", selects=lambda node: node.name() != "BernoulliBackward0")
function("NarrowCopy UpsampleLanczos2DAa", since="2.13", selects=True)

# Functions in Python that are PyTorch's own: their derivatives are written in operators that have rules.

function("torch.autograd._functions.tensor.Resize", moves=True, safe_if=ALWAYS)
function("torch.distributions.dirichlet._Dirichlet")

# Some entries, by a look at their values.

function(
    """
    AdaptiveMaxPool2D AdaptiveMaxPool3D Cummax Cummin Hardshrink Hardtanh Kthvalue MaxPool2DWithIndices
    MaxPool3DWithIndices Maximum Median Minimum Mode NanToNum Nansum Relu Softshrink Sort Threshold Topk
    """,
    selects=True,
    safe_if=ALWAYS,
)
function("Clamp ClampMax ClampMin", selects=True, compares=True, safe_if=ALWAYS)
function("Amax Amin", selects=True, compares=True, safe_if=FINITE)
function("Aminmax", since="2.13", selects=True, compares=True)
function("Max Min", selects=True, safe_if=FINITE)
function(
    """
    FakeQuantizeLearnablePerChannelAffine FakeQuantizeLearnablePerTensorAffine
    FakeQuantizePerChannelAffineCachemask FakeQuantizePerTensorAffineCachemask
    FakeQuantizePerTensorAffineCachemaskTensorQparams Fmax Fmin FractionalMaxPool2D FractionalMaxPool3D MaxPool2D
    MaxUnpool2D MaxUnpool3D MultiMarginLoss MultilabelMarginLoss Nanmedian SegmentReduce
    """,
    selects=True,
)
function("CudnnGridSampler GridSampler2D GridSampler3D Hardsigmoid", selects=True, safe_if=MODERATE)
function("CtcLoss", selects=True)
function(
    "NllLoss NllLoss2D", selects=True, safe_if=MODERATE, safe_if_saved={"self": ALWAYS, "total_weight": AWAY_FROM_ZERO}
)  # fmt: skip

# Products with what was saved, or with a bounded function of it: it has to be finite.

function(
    "Abs Cos Dot Exp Exp2 Expm1 LogSoftmax Mul SafeSoftmax Sigmoid Sin Softmax Tanh",
    safe_if=FINITE,
)  # fmt: skip
function("Bmm Mm Mv", selects=has_sparse_factor, safe_if=FINITE)
function("SparseAddmm", selects=True, safe_if=FINITE, scalars=("alpha", "beta"))
function("SparseMmReduceImpl", selects=True, safe_if=FINITE)
function("NativeDropout", safe_if=FINITE, scalars=("p",))

# The derivative is finite for finite numbers, but could overflow on its way.


def _leaves_out_inputs(node: Any) -> bool:
    """A convolution whose kernel strides over elements that it never reads."""
    return not node._saved_transposed and any(step > 1 for step in node._saved_stride)


def _has_a_low_threshold(node: Any) -> bool:
    """Below it the exponential is computed, and must not overflow."""
    return bool(abs(node._saved_beta * node._saved_threshold) <= 80)


def _has_a_small_power(node: Any) -> bool:
    """A root of a negative number is NaN, and an exponent may be a tensor."""
    return isinstance(node._saved_exponent, (int, float)) and node._saved_exponent in (1, 2, 3, 4)


function("Convolution", selects=_leaves_out_inputs, safe_if=MODERATE)
function(
    """
    BinaryCrossEntropyWithLogits Gelu Hardswish LogSigmoid Mish MseLoss Silu
    """,
    safe_if=MODERATE,
)
# The mean of moderate numbers is one, and the bias is only added.
function("NativeGroupNorm NativeLayerNorm", safe_if=MODERATE, safe_if_saved={"result1": ALWAYS, "bias": ALWAYS})
function("Elu", safe_if=MODERATE, scalars=("alpha", "scale"))
function("Softplus", safe_if=MODERATE, scalars=("beta",), only_if=_has_a_low_threshold)
function("Pow", safe_if=MODERATE, only_if=_has_a_small_power)
function(
    "CudnnBatchNorm MiopenBatchNorm NativeBatchNorm", safe_if=MODERATE, safe_if_saved={"running_var": AWAY_FROM_ZERO}
)
# What the fourth result holds is the kernel's own, in bytes.
function("MkldnnRnnLayer", safe_if=MODERATE, safe_if_saved={"result3": ALWAYS})
# An attention mask is -inf where it cuts off; what it does harm to shows in the logsumexp. The output averages values.
ATTENTION: Any = dict(
    selects=True,
    safe_if=MODERATE,
    safe_if_saved={"attn_bias": ALWAYS, "attn_mask": ALWAYS, "output": ALWAYS},
    scalars=("scale",),
)
function(
    """
    ScaledDotProductEfficientAttention ScaledDotProductFlashAttention ScaledDotProductFlashAttentionForCpu
    """,
    **ATTENTION,
)
function("ScaledDotProductCudnnAttention ScaledDotProductFusedAttentionOverrideable", since="2.13", **ATTENTION)

# These may have sequences one behind the other, and memory behind the last that nobody writes to.
function("EfficientAttention FlashAttention", selects=True)

# Quotients: what was saved is divided by.

function("Log Log10 Log2 Reciprocal Rsqrt Sqrt", safe_if=AWAY_FROM_ZERO)
function("Div", safe_if=AWAY_FROM_ZERO, safe_if_saved={"self": MODERATE})
