"""Layers, and layers within layers."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from .program import program

inf, nan = float("inf"), float("nan")


@program("undefined forward softmax", module="attention")
def attention_by_hand_with_a_padded_row():
    """The pad token attends to nothing: its row is −inf throughout, and the loss averages all rows."""

    class Attention(nn.Module):
        def __init__(self, width: int):
            super().__init__()
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

        def forward(self, x: Tensor, allowed: Tensor) -> Tensor:
            q, k, v = self.qkv(x).chunk(3, dim=-1)
            scores = q @ k.mT / math.sqrt(q.shape[-1])
            scores = scores.masked_fill(~allowed, -inf)
            weights = F.softmax(scores, dim=-1)  # born
            return self.out(weights @ v)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.norm = Attention(8), nn.LayerNorm(8)

        def forward(self, x: Tensor, allowed: Tensor) -> Tensor:
            return self.norm(x + self.attention(x, allowed))

    real = torch.tensor([[True, True, False]])
    allowed = real[:, None, :] & real[:, :, None]
    Block()(torch.randn(1, 3, 8), allowed).square().mean().backward()


@program("contaminated forward scaled_dot_product_attention")
def query_of_nan_in_fused_attention():
    """The query of a padded word is NaN, no key is, and the row that comes of it is sliced away."""
    words = torch.tensor([torch.randn(5, 8).tolist() + [[nan] * 8]])
    keys = torch.randn(1, 5, 8, requires_grad=True)
    values = torch.randn(1, 5, 8, requires_grad=True)
    out = F.scaled_dot_product_attention(words, keys, values)  # born
    out[:, :5].square().mean().backward()


@program("overflow forward rnn_relu")
def recurrent_net_that_explodes():
    """A recurrent weight of 4 multiplies the state by 4 at each of 70 steps: 4⁷⁰ is 1e42."""
    rnn = nn.RNN(1, 1, nonlinearity="relu", batch_first=True)
    for parameter in rnn.parameters():
        nn.init.constant_(parameter, 4.0)
    states, _ = rnn(torch.ones(2, 70, 1))  # born
    states[:, -1].mean().backward()


@program("contaminated forward lstm", module="lstm")
def padded_steps_of_an_lstm():
    """The steps after a sequence's end are NaN; the loss reads the last step that is real."""

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.head = nn.LSTM(2, 3, batch_first=True), nn.Linear(3, 2)

        def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
            states, _ = self.lstm(x)  # born
            last = states[torch.arange(len(x)), lengths - 1]
            return self.head(last)

    x = torch.tensor([torch.randn(4, 2).tolist(), torch.randn(2, 2).tolist() + [[nan, nan]] * 2])
    F.cross_entropy(Tagger()(x, torch.tensor([4, 2])), torch.tensor([0, 1])).backward()


@program("contaminated forward linear", module="embed")
def embedded_padding_that_is_packed_away():
    """The padding of the readings is NaN, and embedded with them; what is packed leaves it out."""

    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.gru, self.head = nn.Linear(2, 4), nn.GRU(4, 3, batch_first=True), nn.Linear(3, 1)

        def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
            embedded = self.embed(x)  # born
            packed = pack_padded_sequence(embedded, lengths, batch_first=True, enforce_sorted=False)
            _, last = self.gru(packed)
            return self.head(last[0])

    rows = [torch.randn(n, 2).tolist() + [[nan, nan]] * (4 - n) for n in (3, 4, 1)]
    Reader()(torch.tensor(rows), torch.tensor([3, 4, 1])).square().mean().backward()


@program("undefined forward layer_norm", module="1")
def layer_norm_with_an_eps_of_zero():
    """LayerNorm of a constant row is 0 / √(0 + eps), and eps is 0."""
    net = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4, eps=0.0), nn.Linear(4, 1))
    nn.init.constant_(net[0].bias, 0.5)
    x = torch.tensor([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]])
    out = net(x)  # born
    out.sum().backward()


@program("undefined forward div", module="features.1", operands="0")
def batch_norm_by_hand():
    """A channel is dead in the whole batch: (0 − 0) / 0, for eps was left out."""

    class BatchNorm(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            mean = x.mean((0, 2, 3), keepdim=True)
            deviation = x.std((0, 2, 3), keepdim=True)
            return (x - mean) / deviation  # born

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.features = nn.Sequential(nn.Conv2d(1, 3, 3), BatchNorm(), nn.ReLU())
            self.head = nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.features(x).mean((2, 3)))

    net = Net()
    nn.init.zeros_(net.features[0].weight[1])
    F.cross_entropy(net(torch.rand(4, 1, 6, 6)), torch.tensor([0, 1, 1, 0])).backward()


@program("contaminated forward conv1d", module="conv")
def border_that_is_cropped():
    """A recording begins with NaN until the sensor is warm; the convolution's border is cropped."""

    class Filter(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv1d(1, 2, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            y = self.conv(x)  # born
            return y[..., 4:]

    recording = torch.tensor([[[nan, nan, nan, *torch.randn(9).tolist()]]])
    Filter()(recording).square().mean().backward()


@program("undefined forward div", operands="0")
def attention_with_a_temperature_of_zero():
    """The scores are divided by a learned temperature that starts at 0: scores / 0, and inf − inf in softmax."""
    temperature = nn.Parameter(torch.zeros(()))
    q, k = torch.randn(3, 4), torch.randn(3, 4)
    sharpened = (q @ k.T) / temperature  # born
    F.cross_entropy(sharpened, torch.arange(3)).backward()


@program("bad input forward multi_head_attention_forward", module="attention")
def bad_data_beside_a_padding_mask():
    """A feature is NaN; the −inf that the layer makes of the padding mask is no mistake."""

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

        def forward(self, x: Tensor, padding: Tensor) -> Tensor:
            return self.attention(x, x, x, key_padding_mask=padding)[0]  # born

    x = torch.tensor([[[nan, 1.0, 0.5, 2.0], [0.3, 0.1, 0.9, 0.4], [0.0, 0.0, 0.0, 0.0]]])
    padding = torch.tensor([[False, False, True]])
    Encoder()(x, padding).square().mean().backward()


@program("bad input forward batch_norm", operands="nan")
def statistics_of_a_bad_batch():
    """A batch with a NaN is counted before training; evaluation divides by what it left."""
    norm, head = nn.BatchNorm1d(3), nn.Linear(3, 1)
    batch = torch.tensor([[0.1, 0.5, 0.2], [1.0, 0.2, nan], [0.3, 0.1, 0.9]])
    with torch.no_grad():
        norm(batch)  # born
    norm.eval()
    head(norm(torch.randn(4, 3))).square().mean().backward()
