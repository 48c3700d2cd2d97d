"""One record for each forward function: what it selects, and what of what it saved its derivative multiplies by.

A function that is missing here selects nothing, and its graph is never taken for harmless. Those with a derivative of
our own are recorded beside it, in `rules`.
"""

from __future__ import annotations

from typing import Any

from .distributed import BORDERS
from .graph import can_be_read_again
from .looks import AWAY_FROM_ZERO, FINITE, MODERATE, NOTHING
from .registry import function
from .sparse import has_sparse_factor

# Linear, and every entry goes into the result.

function(
    """
    Alias Cat Clone Expand Flip Permute PixelShuffle PixelUnshuffle Repeat ReshapeAlias Roll Squeeze Stack Sum T
    Transpose UnsafeView Unsqueeze View
    """,
    moves=True,
    look=NOTHING,
)
function(
    """
    AccumulateGrad AsStridedScatter Cumsum DiagEmbed IndexAdd Lift Neg ReflectionPad1D ReflectionPad2D ReflectionPad3D
    Mean ReplicationPad1D ReplicationPad2D ReplicationPad3D ScatterAdd ToCopy
    """,
    look=NOTHING,
)
function(" ".join(BORDERS), moves=True, look=NOTHING)
function("Add", moves=lambda node: getattr(node, "_saved_alpha", 1) == 1, look=NOTHING, scalars=("alpha",))
function("Sub Rsub", look=NOTHING, scalars=("alpha",))
function("LeakyRelu", look=NOTHING, scalars=("negative_slope",))

# A part of the entries, in places that don't depend on their values.

function(
    """
    ConstantPadNd Diagonal Fill Select Slice Split SplitWithSizes Tril Triu Unbind UnsafeSplit UnsafeSplitWithSizes Zero
    """,
    selects=True,
    moves=True,
    look=NOTHING,
)
function("Where", selects=True, look=NOTHING)
# Of nested tensors; PyTorch gives some of their nodes names of their own.
function(
    """
    ChunkBackwardAutogradNestedTensor0 SelectBackwardAutogradNestedTensor0
    SplitWithSizesBackwardAutogradNestedTensor0 UnbindBackwardAutogradNestedTensor0
    """,
    selects=True,
    moves=True,
    look=NOTHING,
)
function(
    """
    NestedFromPaddedTensor NestedGetValues NestedViewFromJagged SqueezeBackwardAutogradNestedTensor0
    SqueezeBackwardAutogradNestedTensor1 ToPaddedTensor ViewBackwardAutogradNestedTensor0
    """,
    moves=True,
    look=NOTHING,
)


def _fills_with_a_tensor(node: Any) -> bool:
    """Whose gradient is a sum, which PyTorch takes in another order for a subclass."""
    values = node.next_functions[1:]
    return any(ahead is not None for ahead, _ in values) and can_be_read_again(node, unknown=False)


function("MaskedFill", selects=True, moves=_fills_with_a_tensor, look=NOTHING)
function(
    """
    AsStrided AvgPool2D AvgPool3D AdaptiveAvgPool2D AdaptiveAvgPool3D CopyBackwards Embedding
    Gather Index IndexCopy IndexFill IndexPut IndexSelect MaskedScatter MaskedSelect Scatter SelectScatter
    SliceScatter Take Trace Unfold UpsampleBilinear2D UpsampleNearest1D UpsampleNearest2D UpsampleNearest3D
    """,
    selects=True,
    look=NOTHING,
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

function("torch.autograd._functions.tensor.Resize", moves=True, look=NOTHING)
function("torch.distributions.dirichlet._Dirichlet")

# Some entries, by a look at their values.

function(
    """
    AdaptiveMaxPool2D AdaptiveMaxPool3D Cummax Cummin Hardshrink Hardtanh Kthvalue MaxPool2DWithIndices
    MaxPool3DWithIndices Maximum Median Minimum Mode NanToNum Nansum Relu Softshrink Sort Threshold Topk
    """,
    selects=True,
    look=NOTHING,
)
function("Clamp ClampMax ClampMin", selects=True, compares=True, look=NOTHING)
function("Amax Amin", selects=True, compares=True, look=FINITE)
function("Aminmax", since="2.13", selects=True, compares=True)
function("Max Min", selects=True, look=FINITE)
function(
    """
    FakeQuantizeLearnablePerChannelAffine FakeQuantizeLearnablePerTensorAffine
    FakeQuantizePerChannelAffineCachemask FakeQuantizePerTensorAffineCachemask
    FakeQuantizePerTensorAffineCachemaskTensorQparams Fmax Fmin FractionalMaxPool2D FractionalMaxPool3D MaxPool2D
    MaxUnpool2D MaxUnpool3D MultiMarginLoss MultilabelMarginLoss Nanmedian SegmentReduce
    """,
    selects=True,
)
function("CudnnGridSampler GridSampler2D GridSampler3D Hardsigmoid", selects=True, look=MODERATE)
function("CtcLoss", selects=True)
function(
    "NllLoss NllLoss2D", selects=True, look=MODERATE, looks={"self": None, "total_weight": AWAY_FROM_ZERO}
)  # fmt: skip

# Products with what was saved, or with a bounded function of it: it has to be finite.

function(
    "Abs Cos Dot Exp Exp2 Expm1 LogSoftmax Mul SafeSoftmax Sigmoid Sin Softmax Tanh",
    look=FINITE,
)  # fmt: skip
function("Bmm Mm Mv", selects=has_sparse_factor, look=FINITE)
function("SparseAddmm", selects=True, look=FINITE, scalars=("alpha", "beta"))
function("SparseMmReduceImpl", selects=True, look=FINITE)
function("NativeDropout", look=FINITE, scalars=("p",))

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


function("Convolution", selects=_leaves_out_inputs, look=MODERATE)
function(
    """
    BinaryCrossEntropyWithLogits Gelu Hardswish LogSigmoid Mish MseLoss Silu
    """,
    look=MODERATE,
)
# The mean of moderate numbers is one, and the bias is only added.
function("NativeGroupNorm NativeLayerNorm", look=MODERATE, looks={"result1": None, "bias": None})
function("Elu", look=MODERATE, scalars=("alpha", "scale"))
function("Softplus", look=MODERATE, scalars=("beta",), only_if=_has_a_low_threshold)
function("Pow", look=MODERATE, only_if=_has_a_small_power)
function("CudnnBatchNorm MiopenBatchNorm NativeBatchNorm", look=MODERATE, looks={"running_var": AWAY_FROM_ZERO})
# What the fourth result holds is the kernel's own, in bytes.
function("MkldnnRnnLayer", look=MODERATE, looks={"result3": None})
# An attention mask is -inf where it cuts off; what it does harm to shows in the logsumexp. The output averages values.
ATTENTION: Any = dict(
    selects=True, look=MODERATE, looks={"attn_bias": None, "attn_mask": None, "output": None}, scalars=("scale",)
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

function("Log Log10 Log2 Reciprocal Rsqrt Sqrt", look=AWAY_FROM_ZERO)
function("Div", look=AWAY_FROM_ZERO, looks={"self": MODERATE})
