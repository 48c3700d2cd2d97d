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


@program("contaminated forward softmax", module="layers.0.attention")
def padded_row_through_four_layers():
    """The pad token's row is NaN from the first of four layers on; no other row sees it, and the loss drops it."""

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(8, 24)

        def forward(self, x: Tensor, allowed: Tensor) -> Tensor:
            q, k, v = self.qkv(x).chunk(3, dim=-1)
            scores = (q @ k.mT).masked_fill(~allowed, -inf)
            weights = scores.softmax(-1)  # born
            return weights[..., : x.shape[1] - 1] @ v[:, : x.shape[1] - 1]

    class Layer(nn.Module):
        def __init__(self, first: bool):
            super().__init__()
            self.attention = Attention() if first else None
            self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

        def forward(self, x: Tensor, allowed: Tensor) -> Tensor:
            if self.attention is not None:
                x = x + self.attention(x, allowed)
            return x + self.down(F.gelu(self.up(self.norm(x))))

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(Layer(number == 0) for number in range(4))

        def forward(self, x: Tensor, allowed: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(x, allowed)
            return x

    real = torch.tensor([True, True, True, False])
    allowed = real[None, :] & real[:, None]
    out = Encoder()(torch.randn(2, 4, 8), allowed)
    out[:, real].square().mean().backward()


@program("undefined forward multi_head_attention_forward", module="layers.1.cross")
def decoder_without_a_memory():
    """The encoder's output is all padding for one example; the decoder's second layer looks at the weights."""

    class Layer(nn.Module):
        def __init__(self, weighted: bool):
            super().__init__()
            self.cross, self.weighted = nn.MultiheadAttention(4, 1, batch_first=True), weighted

        def forward(self, x: Tensor, memory: Tensor, padding: Tensor) -> Tensor:
            seen, _ = self.cross(x, memory, memory, key_padding_mask=padding, need_weights=self.weighted)  # born
            return x + seen

    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([Layer(False), Layer(True)])

        def forward(self, x: Tensor, memory: Tensor, padding: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(x, memory, padding)
            return x

    padding = torch.tensor([[False, True, True], [True, True, True]])
    Decoder()(torch.randn(2, 2, 4), torch.randn(2, 3, 4), padding).square().mean().backward()


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


@program("overflow forward linear", module="cell")
def recurrent_net_by_hand_that_explodes():
    """The same by hand: one line, passed at each step; the overflow comes at the 64th."""

    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = nn.Linear(2, 2, bias=False)
            self.read = nn.Linear(2, 1)
            nn.init.constant_(self.cell.weight, 2.0)

        def forward(self, steps: int) -> Tensor:
            state = torch.ones(1, 2)
            for _ in range(steps):
                state = self.cell(state).relu()  # born
            return self.read(state)

    Recurrent()(70).sum().backward()


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


@program("undefined forward div", module="encoder.layers.1.norm", operands="0")
def norm_without_eps():
    """An RMS norm without eps, two layers deep, meets a row of zeros behind a relu."""

    class Norm(nn.Module):
        def __init__(self, width: int):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(width))

        def forward(self, x: Tensor) -> Tensor:
            rms = x.norm(dim=-1, keepdim=True) / math.sqrt(x.shape[-1])
            return x / rms * self.scale  # born

    class Layer(nn.Module):
        def __init__(self, shift: float):
            super().__init__()
            self.norm, self.lin, self.shift = Norm(4), nn.Linear(4, 4), shift

        def forward(self, x: Tensor) -> Tensor:
            return F.relu(self.lin(self.norm(x)) + self.shift)

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([Layer(-50.0), Layer(1.0)])

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(x)
            return x

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.head = Encoder(), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.encoder(x))

    F.cross_entropy(Model()(torch.randn(3, 4)), torch.tensor([0, 1, 1])).backward()


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


@program("undefined forward mean", module="router")
def expert_without_tokens():
    """No token chose the third expert: the mean of its tokens, for the balance, is the mean of nothing."""

    class Router(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Linear(4, 3)

        def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
            p = self.gate(tokens).softmax(-1)
            chosen = p[:, :2].argmax(-1)
            balance = torch.zeros(())
            for expert in range(3):
                share = p[chosen == expert, expert].mean()  # born
                balance = balance + share.square()
            return chosen, balance

    class Mixture(nn.Module):
        def __init__(self):
            super().__init__()
            self.router = Router()
            self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

        def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
            chosen, balance = self.router(tokens)
            out = torch.zeros_like(tokens)
            for number, expert in enumerate(self.experts):
                mine = chosen == number
                out = out.index_put((mine.nonzero().squeeze(1),), expert(tokens[mine]))
            return out, balance

    out, balance = Mixture()(torch.randn(6, 4))
    (out.square().mean() + 0.01 * balance).backward()


@program("contaminated forward embedding", module="table")
def pad_row_of_a_table():
    """The table's row for padding is NaN; the padded words are filled over after a layer."""

    class Encoder(nn.Module):
        def __init__(self, rows: list[list[float]]):
            super().__init__()
            self.table = nn.Embedding.from_pretrained(torch.tensor(rows), freeze=False)
            self.layer = nn.Linear(3, 3)

        def forward(self, words: Tensor) -> Tensor:
            vectors = self.table(words)  # born
            h = self.layer(vectors).tanh()
            return h.masked_fill((words == 0)[..., None], 0.0).sum(1)

    encoder = Encoder([[nan] * 3, *torch.randn(4, 3).tolist()])
    encoder(torch.tensor([[1, 2, 0], [3, 0, 0]])).square().mean().backward()


@program("undefined forward div", module="convs.1", operands="0")
def graph_node_without_neighbours():
    """The second graph convolution drops edges, and divides by a degree of 0."""

    class Conv(nn.Module):
        def __init__(self, self_loops: bool):
            super().__init__()
            self.lin, self.self_loops = nn.Linear(3, 3), self_loops

        def forward(self, x: Tensor, edges: Tensor) -> Tensor:
            source, target = edges
            if self.self_loops:
                loops = torch.arange(len(x))
                source, target = torch.cat([source, loops]), torch.cat([target, loops])
            total = torch.zeros_like(x).index_add(0, target, x[source])
            degree = torch.zeros(len(x)).index_add(0, target, torch.ones(len(target)))
            mean = total / degree[:, None]  # born
            return self.lin(mean).relu()

    class Graph(nn.Module):
        def __init__(self):
            super().__init__()
            self.convs = nn.ModuleList([Conv(True), Conv(False)])

        def forward(self, x: Tensor, edges: Tensor) -> Tensor:
            for conv in self.convs:
                x = conv(x, edges)
            return x

    Graph()(torch.randn(4, 3), torch.tensor([[0, 1, 2], [1, 2, 0]])).mean().backward()


@program("overflow forward exp", module="blocks.9.decay")
def overflow_in_the_tenth_of_twelve_blocks():
    """Each block's decay grows by 10: exp overflows in the tenth, and the loss uses it."""

    class Decay(nn.Module):
        def __init__(self, rate: float):
            super().__init__()
            self.rate = nn.Parameter(torch.full((4,), rate))

        def forward(self, x: Tensor) -> Tensor:
            factor = torch.exp(self.rate)  # born
            return x.tanh() / (1 + factor)

    class Block(nn.Module):
        def __init__(self, number: int):
            super().__init__()
            self.lin, self.decay = nn.Linear(4, 4), Decay(10.0 * number)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.decay(self.lin(x))

    class Tower(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(Block(number) for number in range(12))

        def forward(self, x: Tensor) -> Tensor:
            for block in self.blocks:
                x = block(x)
            return x

    Tower()(torch.randn(3, 4)).square().mean().backward()


@program("undefined forward log", module="head", operands="0")
def infinity_beside_a_mask():
    """A causal mask of −inf is meant and harmless; the NaN is of the head, which takes log(relu)."""

    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.head = nn.Linear(4, 12), Head()

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.qkv(x).chunk(3, dim=-1)
            mask = torch.full((len(x), len(x)), -inf).triu(1)
            return self.head((q @ k.T + mask).softmax(-1) @ v)

    class Head(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            rate = x.relu()
            return rate - torch.log(rate)  # born

    Decoder()(torch.randn(5, 4)).mean().backward()


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
