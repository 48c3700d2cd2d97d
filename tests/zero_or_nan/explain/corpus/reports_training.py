"""Public reports of training runs: what diverged, what only looks like it, and optimizers, parameters and buffers.

Each was looked up on 2026-11-23, reduced, and given its expectation before the tool saw it. A docstring says what
happens in the program, and then what its thread says of the cause and of the fix.
"""

import io
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .program import descend, program

nan = float("nan")

SLOWER = r"learning rate|\blr\b|clip_grad"  # the two remedies that threads find against divergence


@program("overflow forward linear", thread="karpathy/nanoGPT#136", cause="divergence", remedy=SLOWER)
def language_model_with_too_long_steps():
    """Adam moves each weight by the learning rate, and after one step the product of seven layers is too large. Thread:
    The loss is NaN after some steps; a smaller learning rate is confirmed to fix it."""
    layers = [layer for _ in range(6) for layer in (nn.Linear(16, 16), nn.ReLU())]
    model = nn.Sequential(nn.Embedding(8, 16), *layers, nn.Linear(16, 8))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e5)
    text = torch.randint(8, (32,))
    for _ in range(2):
        logits = model(text[:-1])  # born
        loss = F.cross_entropy(logits, text[1:])
        descend(optimizer, loss)


@program("overflow forward mse_loss", thread="rstudio-conf-2020/dl-keras-tf#9", cause="divergence", remedy=SLOWER)
def prices_of_houses():
    """The targets are some 10⁵, and steps of four times the gradient throw the weights ever farther. Thread: The
    squared error of prices up to 755,000 explodes in the first epoch; the thread takes the logarithm of the target.
    Shorter steps help as well."""
    x = torch.randn(16, 4)
    price = 2e5 + 1e5 * torch.randn(16, 1)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=4.0)
    for _ in range(24):
        loss = F.mse_loss(model(x), price)  # born
        descend(optimizer, loss)


@program("overflow forward linear", thread="pytorch/pytorch#2623", cause="divergence", remedy=SLOWER)
def recurrent_net_without_clipping():
    """Each step makes the recurrent weight larger, until its 24th power is more than float32 holds. Thread: The
    gradients of a character-level recurrent net explode; clipping them in the training step fixes the NaN."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.enter, self.recur, self.leave = nn.Linear(3, 8), nn.Linear(8, 8), nn.Linear(8, 1)

        def forward(self, x: Tensor) -> Tensor:
            h = torch.zeros(x.shape[1], 8)
            for frame in x:
                h = F.relu(self.enter(frame) + self.recur(h))  # born
            return self.leave(h)

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    x, y = torch.randn(24, 6, 3), torch.randn(6, 1) * 20
    for _ in range(5):
        loss = F.mse_loss(model(x), y)
        descend(optimizer, loss)


@program("overflow forward mse_loss", thread="facebookresearch/ReAgent#189", cause="divergence", remedy=SLOWER)
def target_network_that_follows_at_once():
    """The target of Q is made of Q itself, and both run away from each other, by a factor in each step. Thread: The TD
    loss goes 4.9, 37, 468 and on to 5 million; the target network is updated too fast. A smaller rate of its updates is
    more stable."""
    value = nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(value.parameters(), lr=2.0)
    state, following = torch.ones(4, 1), torch.full((4, 1), 2.0)
    for _ in range(36):
        with torch.no_grad():
            target = 0.99 * value(following)
        loss = F.mse_loss(value(state), target)  # born
        descend(optimizer, loss)


@program("overflow forward linear", thread="torchgan/torchgan#42", cause="divergence", remedy=r"\blr\b|clip|clamp")
def critic_without_bounds():
    """The loss of a Wasserstein critic has no lower bound, and nothing bounds its weights. Thread: The loss without a
    gradient penalty needs the critic's parameters clipped; clipping was missing."""
    critic = nn.Sequential(nn.Linear(4, 16), nn.LeakyReLU(), nn.Linear(16, 16), nn.LeakyReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(critic.parameters(), lr=1.0)
    real, fake = torch.randn(16, 4) + 2, torch.randn(16, 4) - 2
    for _ in range(7):
        believed, doubted = critic(torch.cat([real, fake])).chunk(2)  # born
        loss = doubted.mean() - believed.mean()
        descend(optimizer, loss)


@program("overflow forward exp", thread="AntixK/PyTorch-VAE#16", cause="divergence", remedy=SLOWER)
def divergence_that_explodes():
    """The log variance is thrown up by a step that is too long, and exp of it goes from 2,000 to infinity. Thread: The
    loss grows from 2,000 to 2e35 and to infinity in some five steps; the answer is a smaller learning rate."""
    encode = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(encode.parameters(), lr=0.3)
    x = torch.randn(8, 4) * 3
    for _ in range(4):
        mean, log_variance = encode(x).chunk(2, dim=1)
        loss = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1).mean()  # born
        descend(optimizer, loss)


@program("overflow forward mse_loss", thread="nicholas-leonard/drmad#3", cause="divergence", remedy=SLOWER)
def inner_loop_with_too_long_steps():
    """Gradient descent by hand, inside of the graph: its learning rate is too large, and no optimizer is there. Thread:
    The loss of a hyperparameter search grows to NaN; the elementary learning rate was too high, and 0.00001 fixes
    it."""
    rate = torch.tensor(5.0, requires_grad=True)
    x = torch.randn(16, 3)
    y = x.sum(1, keepdim=True)
    weight = torch.zeros(3, 1, requires_grad=True)
    for _ in range(16):
        inner = F.mse_loss(x @ weight, y)
        (slope,) = torch.autograd.grad(inner, weight, create_graph=True)
        weight = weight - rate * slope
    outer = F.mse_loss(x @ weight, y)  # born
    outer.backward()


@program("overflow forward mse_loss", thread="RaoFoundation/bittensor#229", cause="divergence", remedy=SLOWER)
def momentum_without_clipping():
    """Momentum adds each step to the next, and the loss goes from 6 to 10¹¹ and on. Thread: The loss explodes from 6.28
    to 298,760,397,856 after some epochs; clipping the gradients is merged as the fix."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.8, momentum=0.9)
    x = torch.randn(32, 4)
    y = x.sum(1, keepdim=True).sin()
    for _ in range(8):
        loss = F.mse_loss(model(x), y)  # born
        descend(optimizer, loss)


@program("overflow forward linear", thread="rtqichen/torchdiffeq#58", cause="divergence", remedy=rf"{SLOWER}|Adam")
def neural_equation_that_the_optimizer_ruined():
    """The equation was harmless; one step of SGD makes its weights so large that the solution runs away. Thread: The
    loss is 2e4 in the first iteration and 6e13 in the second, then NaN. The author of the library: stochastic gradient
    descent diverged; Adam works."""
    slope = nn.Sequential(nn.Linear(2, 8), nn.ELU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(slope.parameters(), lr=0.3)
    begin, end = torch.randn(6, 2), torch.randn(6, 2) * 3
    for _ in range(4):
        z = begin
        for _ in range(12):
            z = z + 0.25 * slope(z)  # born
        loss = F.mse_loss(z, end)
        descend(optimizer, loss)


@program(
    "overflow forward conv1d", thread="XingangPan/SCNN#82", cause="the initialization", remedy=r"\binit|initiali[sz]"
)
def message_passing_that_begins_too_large():
    """Each slice of an image is added to the next one through a convolution whose weights begin too large. Thread: The
    loss is NaN from the beginning of the training. The author initializes the layer with a smaller variance than usual,
    and all others from a pretrained model."""
    message = nn.Conv1d(4, 4, 3, padding=1, bias=False)
    nn.init.normal_(message.weight, std=1.0)
    optimizer = torch.optim.SGD(message.parameters(), lr=1e-3)
    slices = list(torch.randn(90, 1, 4, 12))
    for at in range(1, len(slices)):
        slices[at] = slices[at] + F.relu(message(slices[at - 1]))  # born
    loss = torch.cat(slices).mean()
    loss.backward()
    optimizer.step()


@program(
    "overflow forward mul", thread="rtqichen/torchdiffeq#57", cause="a stiff equation", remedy=r"step|solver|stiff"
)
def stiff_equation():
    """y' = −1000 (y − cos t) by Euler's method with steps of 0.1: each multiplies the error by −99. Thread: The system
    is too stiff for an explicit method; nicer activations, weight decay, or another solver or step help."""
    stiffness = nn.Parameter(torch.tensor(1000.0))
    optimizer = torch.optim.Adam([stiffness], lr=1e-2)
    y = torch.zeros(3)
    for step in range(24):
        y = y + 0.1 * stiffness * (math.cos(0.1 * step) - y)  # born
    loss = y.abs().mean()
    loss.backward()
    optimizer.step()


@program(
    "overflow forward mse_loss", thread="p-christ/Deep-Reinforcement-Learning-Algorithms-with-PyTorch#8",
    cause="the scale of the data", remedy=r"tanh|clamp|scale|normali[sz]e",
)  # fmt: skip
def reward_of_an_action_without_bounds():
    """The reward is quadratic in an action that has no bounds, and one of them is huge; the weights have hardly moved.
    Thread: The environment may return huge rewards where the agent chooses huge actions, says the author; another final
    activation, in place of none, may stop it."""
    critic = nn.Linear(3, 1)
    optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3)
    for step in range(3):
        state = torch.randn(8, 3)
        action = state[:, :1] * (1e11 if step == 2 else 1.0)
        reward = -(action**2)
        loss = F.mse_loss(critic(state), reward)  # born
        descend(optimizer, loss)


@program("overflow forward matmul", thread="cvignac/SMP#3", cause="the depth", remedy=r"normali[sz]|LayerNorm")
def forty_layers_that_add_up():
    """Each of 40 layers adds up a node's eleven neighbours, and nothing is normalised in between. Thread: The
    activations explode: the learning rate is too big, or there are too many layers without a normalization after each.
    The author normalizes, or uses fewer layers."""
    mix = nn.ModuleList(nn.Linear(6, 6) for _ in range(40))
    optimizer = torch.optim.Adam(mix.parameters(), lr=1e-3)
    edges = torch.ones(12, 12)
    h = torch.rand(12, 6)
    for layer in mix:
        h = edges @ F.relu(layer(h)).add(h)  # born
    loss = h.mean()
    loss.backward()
    optimizer.step()


@program(
    "overflow forward sum", thread="huggingface/transformers#10674", cause="half precision",
    remedy=r"float32|\.float\(\)|dtype",
)  # fmt: skip
def label_smoothing_in_half_precision():
    """The sum of 20,000 log-probabilities is some 2e5, and float16 ends at 65,504. Thread: The loss of an evaluation in
    float16 is NaN with label smoothing; the fix adds up in float32."""
    logits = torch.randn(2, 20_000).half().requires_grad_()
    surprise = -F.log_softmax(logits, dim=-1)
    smoothed = surprise.sum(dim=-1)  # born
    right = surprise[torch.arange(2), torch.tensor([3, 7])]
    loss = (0.9 * right + 0.1 * smoothed / 20_000).float().mean()
    loss.backward()


@program("undefined forward addcdiv", thread="pytorch/pytorch#147437", cause="the optimizer", remedy=r"\beps\b")
def adam_whose_second_moment_is_zero():
    """A gradient of 1e-4 has a square that float16 rounds to 0, as it does Adam's eps: a number is divided by 0.
    Thread: Parameters are NaN after the first optimizer.step(); the thread asks for an eps that follows the dtype.
    afiaka87/glide-finetune#6 sets eps=1e-4."""
    layer = nn.Linear(4, 2).half()
    optimizer = torch.optim.Adam(layer.parameters(), lr=1e-3, foreach=False)
    x = torch.randn(3, 4).half()
    for _ in range(2):
        loss = layer(x).float().sum() * 1e-4
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # born


@program("undefined forward addcdiv", thread="ml-explore/mlx#3712", cause="the optimizer", remedy=r"\beps\b")
def root_mean_square_without_epsilon():
    """RMSprop with an eps of 0 divides the gradient of a token that doesn't occur by its root: 0 / 0. Thread: The
    review: eps == 0 is unsafe, the accumulators start at 0, and a gradient of 0 gives 0 / 0. Ask for an eps above 0."""
    model = nn.Sequential(nn.Embedding(4, 3), nn.Linear(3, 2))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-2, eps=0.0)
    for tokens in ([0, 1, 2], [1, 3, 2]):
        loss = F.cross_entropy(model(torch.tensor(tokens)), torch.tensor([0, 1, 1]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # born


@program("undefined forward _fused_adagrad", thread="ml-explore/mlx#3712", cause="the optimizer", remedy=r"\beps\b")
def fused_adagrad_without_epsilon():
    """The same for Adagrad, in one kernel for all parameters. Thread: The cause and the fix are the same."""
    model = nn.Sequential(nn.Embedding(4, 3), nn.Linear(3, 2))
    optimizer = torch.optim.Adagrad(model.parameters(), lr=1e-2, eps=0.0, fused=True)
    for tokens in ([0, 1, 2], [1, 3, 2]):
        loss = F.cross_entropy(model(torch.tensor(tokens)), torch.tensor([0, 1, 1]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # born


@program("undefined forward div", thread="microsoft/dion#24", cause="the optimizer", remedy=r"clamp|\beps\b")
def normalised_update_of_zero():
    """An optimizer of one's own rescales each update to its old norm; that of a layer without a gradient is 0 / 0.
    Thread: The ratio of two norms is 0 / 0 for weights that begin at 0; the fix clamps the second norm to 1e-8."""

    class Muon(torch.optim.Optimizer):
        @torch.no_grad()
        def step(self):
            for parameter in self.param_groups[0]["params"]:
                update = parameter.grad
                new = update / update.square().mean(-1, keepdim=True).add(1e-8).sqrt()
                ratio = update.norm() / new.norm()  # born
                parameter.sub_(new * ratio, alpha=self.param_groups[0]["lr"])

    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    nn.init.zeros_(model[1].weight)
    optimizer = Muon(model.parameters(), {"lr": 0.1})
    for _ in range(2):
        loss = (model(torch.randn(5, 3)) - 1).square().mean()
        descend(optimizer, loss)


@program("undefined backward sqrt", thread="facebookresearch/higher#125", cause="the optimizer", remedy=r"1e-|\beps\b")
def adam_inside_of_the_graph():
    """An inner step of Adam is differentiated, and takes the root of a second moment that is 0. Thread: exp_avg_sq
    contains a zero, where sqrt isn't differentiable; adding 1e-16 before the root fixes it, and is confirmed."""
    weight = torch.randn(3, 1, requires_grad=True)
    x, y = torch.randn(6, 3) * torch.tensor([1.0, 1.0, 0.0]), torch.randn(6, 1)
    inner = F.mse_loss(x @ weight, y)
    (slope,) = torch.autograd.grad(inner, weight, create_graph=True)
    first, second = 0.1 * slope, 0.001 * slope**2
    root = second.sqrt()  # born
    fast = weight - 0.1 * first / (root + 1e-8)
    F.mse_loss(x @ fast, y).backward()


@program("undefined forward div", thread="csteinmetz1/auraloss#25", operands="0", remedy=r"\beps\b|1e-|clamp")
def silent_target_under_a_fused_optimizer():
    """SI-SDR projects on a target of zeros, and 0 / 0 goes through a fused AdamW into all later steps. Thread: The loss
    is NaN where the target is all zeros; the fix, csteinmetz1/auraloss#26, guards the scaling."""
    separate = nn.Linear(16, 16)
    optimizer = torch.optim.AdamW(separate.parameters(), lr=1e-3, fused=True)
    for step in range(4):
        mixture = torch.randn(2, 16)
        target = mixture * (0.0 if step == 1 else 0.5)
        made = separate(mixture)
        scale = (made * target).sum(1) / target.square().sum(1)  # born
        image = scale[:, None] * target
        ratio = image.square().sum(1) / (image - made).square().sum(1).add(1e-8)
        loss = -10 * torch.log10(ratio + 1e-8).mean()
        descend(optimizer, loss)


@program("undefined forward log", thread="pytorch/pytorch#1620", operands="0", remedy=r"log_softmax|logsumexp|clamp")
def pointer_network_under_a_fused_optimizer():
    """Two softmaxes are mixed, and their log is taken of a 0: both underflowed. Adagrad is fused. Thread: −log(p ·
    softmax + (1 − p) · softmax) of logits 50 apart has NaN gradients, and log_softmax hasn't; the log of the mixture is
    what is needed."""
    generate = nn.Linear(2, 3)
    optimizer = torch.optim.Adagrad(generate.parameters(), lr=0.01, fused=True)
    copy = torch.tensor([[0.0, 150.0, -150.0]]).softmax(1)
    for step in range(3):
        logits = generate(torch.randn(1, 2)) * (1e4 if step == 1 else 1.0) + torch.tensor([[0.0, 0.0, -9.0]])
        mixed = 0.3 * copy + 0.7 * logits.softmax(1)
        loss = -torch.log(mixed[:, 2]).mean()  # born
        descend(optimizer, loss)


@program(
    "bad input forward matmul", thread="sauradip/STALE#16", cause="uninitialized memory",
    remedy=r"nn\.init|torch\.zeros|torch\.randn|initiali[sz]e",
)  # fmt: skip
def parameter_that_was_never_filled():
    """An embedding of the background is torch.empty: it holds what the memory held. Thread: DivBackward0 returns NaN in
    some runs and not in others. A parameter was made by torch.empty; kaiming_uniform_ on it is confirmed to fix it."""
    torch.use_deterministic_algorithms(True)  # the memory then holds NaN for sure
    background = nn.Parameter(torch.empty(1, 4))
    torch.use_deterministic_algorithms(False)
    frames = nn.Linear(5, 4)(torch.randn(3, 5))
    alike = frames @ background.T  # born
    F.binary_cross_entropy_with_logits(alike, torch.tensor([[1.0], [0.0], [1.0]])).backward()


@program(
    "bad input forward matmul", thread="vllm-project/vllm#940", cause="uninitialized memory",
    remedy=r"torch\.zeros|initiali[sz]e",
)  # fmt: skip
def cache_that_was_not_written_yet():
    """A cache of keys is torch.empty, and the third of its rows is read before it was written. Thread: torch.empty
    returns what the memory holds; torch.zeros is the fix."""
    torch.use_deterministic_algorithms(True)  # the memory then holds NaN for sure
    cache = torch.empty(3, 4)
    torch.use_deterministic_algorithms(False)
    cache[:2] = torch.randn(2, 4)
    query = nn.Linear(4, 4)
    scores = query(torch.randn(2, 4)) @ cache.T  # born
    scores.softmax(-1).square().sum().backward()


@program(
    "bad input forward linear", module="head", thread="cardwing/Codes-for-PVKD#9", cause="a checkpoint",
    remedy=r"checkpoint|state.dict|file|load",
)  # fmt: skip
def checkpoint_with_nan():
    """Two thirds of one layer's weights are NaN in the file. Thread: A loop over the state dict finds NaN in the
    published weights; the authors replace the files."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(3, 6), nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.body(x).relu())  # born

    published = Net().state_dict()
    published["head.weight"] = torch.tensor([[nan] * 4 + [0.1, 0.2]] * 2)
    file = io.BytesIO()
    torch.save(published, file)
    file.seek(0)
    model = Net()
    model.load_state_dict(torch.load(file))
    F.cross_entropy(model(torch.randn(4, 3)), torch.tensor([0, 1, 1, 0])).backward()


@program(
    "bad input forward batch_norm", module="1", thread="sharif-apu/BJDD_CVPR21#4", cause="a buffer",
    remedy=r"running|buffer",
)  # fmt: skip
def running_variance_with_nan():
    """The running variance of a published BatchNorm is NaN, and the model is in eval mode. Thread: Most of running_var
    is inf and NaN in the weights' file, and the image is NaN in eval mode; the authors replace the file."""
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Conv2d(2, 1, 1))
    published = model.state_dict()
    published["1.running_var"] = torch.tensor([1.0, nan])
    model.load_state_dict(published)
    model.eval()
    image = model(torch.rand(1, 1, 6, 6))  # born
    image.mean().backward()


@program(
    "bad input forward batch_norm", module="0", thread="pytorch/pytorch#1206", cause="a buffer",
    remedy=r"running|buffer",
)  # fmt: skip
def batch_that_was_skipped_too_late():
    """A batch with a NaN is skipped when its loss is NaN, but its statistics stay in the BatchNorm, for eval mode.
    Thread: Training is fine, and all running_mean and running_var are NaN in evaluation. The thread has no fix; the
    buffers have to be checked as well as the loss."""
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = torch.randn(3, 4, 3).tolist()
    batches[1][0][0] = nan
    for batch in batches:
        loss = model(torch.tensor(batch)).square().mean()  # born
        if loss.isfinite():
            descend(optimizer, loss)
    model.eval()
    model(torch.randn(4, 3)).square().mean().backward()
