"""The layers of torch.nn: half of a batch is bad, the loss uses the rest, gradients are those of a clean batch."""

from itertools import product

import pytest
import torch
from sample import sample
from tensors import bits
from torch import nn

from tools.measure import compiled
from zero_or_nan import ignoring
from zero_or_nan.functions import registry


def layer(make, *shape, out=lambda output: output, inputs=1):
    return make, shape, out, inputs


def first(output):
    return output[0]


LAYERS = {
    "Linear": layer(lambda: nn.Linear(5, 3), 4, 5),
    "Bilinear": layer(lambda: nn.Bilinear(5, 5, 3), 4, 5, inputs=2),
    "Conv1d": layer(lambda: nn.Conv1d(2, 4, 3, padding=1), 4, 2, 8),
    "Conv2d": layer(lambda: nn.Conv2d(2, 4, 3, stride=2, groups=2), 4, 2, 8, 8),
    "Conv3d": layer(lambda: nn.Conv3d(2, 3, 2, dilation=2), 4, 2, 5, 5, 5),
    "ConvTranspose1d": layer(lambda: nn.ConvTranspose1d(2, 4, 3), 4, 2, 8),
    "ConvTranspose2d": layer(lambda: nn.ConvTranspose2d(2, 4, 3, stride=2, groups=2, output_padding=1), 4, 2, 4, 4),
    "ConvTranspose3d": layer(lambda: nn.ConvTranspose3d(2, 3, 2), 4, 2, 3, 3, 3),
    "LayerNorm": layer(lambda: nn.LayerNorm([3, 5]), 4, 3, 5),
    "RMSNorm": layer(lambda: nn.RMSNorm(5), 4, 3, 5),
    "GroupNorm": layer(lambda: nn.GroupNorm(2, 4), 4, 4, 6),
    "SyncBatchNorm": layer(lambda: nn.SyncBatchNorm(3).eval(), 4, 3, 6),
    "LocalResponseNorm": layer(lambda: nn.LocalResponseNorm(2), 4, 3, 6, 6),
    "MultiheadAttention": layer(lambda: nn.MultiheadAttention(8, 2, batch_first=True), 4, 5, 8, out=first, inputs=3),
    "Transformer": layer(lambda: nn.Transformer(8, 2, 1, 1, 16, 0.0, batch_first=True), 4, 5, 8, inputs=2),
    "LSTMCell": layer(lambda: nn.LSTMCell(5, 3), 4, 5, out=lambda states: states[0] + states[1]),
    "RNNCell": layer(lambda: nn.RNNCell(5, 3), 4, 5),
    "GRUCell": layer(lambda: nn.GRUCell(5, 3), 4, 5),
    "Fold": layer(lambda: nn.Fold((4, 4), 2), 4, 8, 9),
    "Unfold": layer(lambda: nn.Unfold(2), 4, 2, 4, 4),
    "PixelShuffle": layer(lambda: nn.PixelShuffle(2), 4, 4, 3, 3),
    "PixelUnshuffle": layer(lambda: nn.PixelUnshuffle(2), 4, 2, 4, 4),
    "ChannelShuffle": layer(lambda: nn.ChannelShuffle(2), 4, 4, 3, 3),
    "Upsample": layer(lambda: nn.Upsample(scale_factor=2, mode="bicubic"), 4, 2, 3, 3),
    "UpsamplingNearest2d": layer(lambda: nn.UpsamplingNearest2d(scale_factor=2), 4, 2, 3, 3),
    "UpsamplingBilinear2d": layer(lambda: nn.UpsamplingBilinear2d(scale_factor=2), 4, 2, 3, 3),
    "CosineSimilarity": layer(nn.CosineSimilarity, 4, 5, inputs=2),
    "PairwiseDistance": layer(nn.PairwiseDistance, 4, 5, inputs=2),
    "RReLU": layer(lambda: nn.RReLU().eval(), 4, 6),  # in training the noise depends on the signs
    "Softmax": layer(lambda: nn.Softmax(1), 4, 5),
    "Softmin": layer(lambda: nn.Softmin(1), 4, 5),
    "LogSoftmax": layer(lambda: nn.LogSoftmax(1), 4, 5),
    "Softmax2d": layer(nn.Softmax2d, 4, 3, 2, 2),
    "Threshold": layer(lambda: nn.Threshold(0.1, 0.0), 4, 5),
    "AdaptiveLogSoftmaxWithLoss": layer(
        lambda: nn.AdaptiveLogSoftmaxWithLoss(5, 6, [2, 4], div_value=1.0), 4, 5, out=first),
}  # fmt: skip
for name in """ReLU ReLU6 ELU SELU CELU GELU SiLU Mish Sigmoid LogSigmoid Tanh Softplus Softsign Softshrink Hardshrink
Hardsigmoid Hardswish LeakyReLU Tanhshrink PReLU GLU Hardtanh""".split():
    LAYERS[name] = layer(getattr(nn, name), 4, 6)
for name in ("RNN", "LSTM", "GRU"):
    LAYERS[name] = layer(
        lambda n=name: getattr(nn, n)(5, 3, 2, batch_first=True, bidirectional=True), 4, 6, 5, out=first
    )
OF_IMAGES = {"MaxPool": [2], "AvgPool": [2], "LPPool": [2, 2], "AdaptiveMaxPool": [3], "AdaptiveAvgPool": [3]}
OF_IMAGES |= {"ConstantPad": [1, 0.5], "ZeroPad": [1], "ReflectionPad": [1], "ReplicationPad": [1], "CircularPad": [1]}
OF_IMAGES |= {"BatchNorm": [2], "InstanceNorm": [2, 1e-5, 0.1, True]}
for dims, space in (("1d", [8]), ("2d", [8, 8]), ("3d", [6, 6, 6])):
    for name, arguments in OF_IMAGES.items():
        LAYERS[name + dims] = layer(lambda n=name + dims, a=arguments: getattr(nn, n)(*a).eval(), 4, 2, *space)
    if dims != "1d":
        LAYERS["FractionalMaxPool" + dims] = layer(
            lambda n="FractionalMaxPool" + dims: getattr(nn, n)(2, output_size=3), 4, 2, *space
        )

LOSSES = {
    "L1Loss": "unit", "MSELoss": "unit", "SmoothL1Loss": "unit", "HuberLoss": "unit", "SoftMarginLoss": "sign",
    "BCELoss": "unit", "BCEWithLogitsLoss": "unit", "KLDivLoss": "unit", "PoissonNLLLoss": "unit",
    "HingeEmbeddingLoss": "sign", "MultiLabelSoftMarginLoss": "unit", "CrossEntropyLoss": "class", "NLLLoss": "class",
    "MultiMarginLoss": "class", "MultiLabelMarginLoss": "classes",
}  # fmt: skip


def agree(a, b):
    return all(torch.allclose(x, y, rtol=1e-4, atol=1e-6) for x, y in zip(a, b, strict=True))


def spoiled(tensors, rows, bad):
    changed = [tensor.clone() for tensor in tensors]
    for tensor in changed:
        tensor[rows:] = bad
    return changed


NAMES = [name for name in compiled.names() if name != "BCELoss"]  # it refuses NaN


@pytest.mark.parametrize(
    ("name", "bad"), [*((name, "nan") for name in NAMES), *sample(product(NAMES, ["inf", "3e38"]), 5)]
)
def test_bad_rows_that_are_sliced_away_leave_no_trace(name, bad):
    """Also if only the loss's derivative would contaminate an upstream layer."""
    program = next(compiled.of_layer(name) if name in LAYERS else compiled.of_loss(name))
    loss, bad_rows = program.of(lambda function: function), spoiled(program.given, program.rows, float(bad))
    wanted = compiled.gradients(torch.autograd.backward, loss, program, program.given)
    assert agree(compiled.gradients(ignoring.backward, loss, program, bad_rows), wanted)


def test_a_frozen_batch_norm_has_the_same_bits_whatever_an_ignored_pixel_is(monkeypatch):
    """The rest of the sample is used. No decomposition is needed, which takes longer."""
    monkeypatch.setattr(registry, "_decompositions", None)
    torch.manual_seed(0)
    norm, images = nn.BatchNorm2d(3).eval(), torch.randn(4, 3, 5, 5)
    used = torch.ones(images.shape, dtype=torch.bool)
    used[1, 2, 3, 4] = False

    def gradients(pixel, grad):
        leaf = torch.where(used, images, pixel).requires_grad_()
        return grad(torch.where(used, norm(leaf), 0.0).square().sum(), [leaf, *norm.parameters()])

    ours = gradients(float("nan"), ignoring.grad)
    assert list(map(bits, ours)) == list(map(bits, gradients(0.0, torch.autograd.grad)))
