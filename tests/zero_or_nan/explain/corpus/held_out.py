"""Models that were written after the tool was: what it says of them was decided before it was asked."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from .program import program

inf, nan = float("inf"), float("nan")


@program("overflow forward exp", module="likelihood")
def decoder_that_is_too_sure():
    """The decoder's log variance is −180, and its precision exp(180) more than float32 holds."""

    class Likelihood(nn.Module):
        def __init__(self):
            super().__init__()
            self.log_variance = nn.Parameter(torch.full((4,), -180.0))

        def forward(self, mean: Tensor, x: Tensor) -> Tensor:
            precision = (-self.log_variance).exp()  # born
            return 0.5 * ((x - mean).square() * precision + self.log_variance).sum(1)

    class Autoencoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.decoder, self.likelihood = nn.Linear(4, 4), nn.Linear(2, 4), Likelihood()

        def forward(self, x: Tensor) -> Tensor:
            mean, log_variance = self.encoder(x).chunk(2, dim=1)
            z = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
            return self.likelihood(self.decoder(z), x).mean()

    Autoencoder()(torch.randn(5, 4)).backward()


@program("undefined forward log")
def generator_against_a_sure_discriminator():
    """The discriminator's sigmoid of a real sample is 1 by rounding: fine; that of a fake one too, and log(1 − 1)."""
    generator = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3))
    discriminator = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1), nn.Sigmoid())
    nn.init.constant_(discriminator[2].bias, 50.0)
    fake = generator(torch.randn(4, 2))
    loss = torch.log(1 - discriminator(fake)).mean()  # born
    loss.backward()


@program()
def contrastive_loss_with_its_diagonal_masked():
    """InfoNCE: an image isn't compared with itself, by −inf on the diagonal."""
    z = F.normalize(nn.Linear(6, 4)(torch.randn(8, 6)), dim=1)
    similarity = (z @ z.T / 0.1).masked_fill(torch.eye(8, dtype=torch.bool), -inf)
    F.cross_entropy(similarity, torch.arange(8).roll(4)).backward()


@program("undefined forward mul")
def supervised_contrastive_loss():
    """The log-probability of oneself is −inf, and a float mask of positives multiplies it by 0."""
    label = torch.tensor([0, 0, 1, 1])
    z = F.normalize(nn.Linear(5, 3)(torch.randn(4, 5)), dim=1)
    similarity = (z @ z.T / 0.1).masked_fill(torch.eye(4, dtype=torch.bool), -inf)
    log_p = similarity.log_softmax(1)
    positive = (label[:, None] == label).float() - torch.eye(4)
    weighed = positive * log_p  # born
    loss = -(weighed.sum(1) / positive.sum(1)).mean()
    loss.backward()


@program()
def forbidden_transitions_of_a_tagger():
    """A conditional random field forbids some transitions by −inf, and each tag is still reached from one."""
    emission = nn.Linear(4, 3)(torch.randn(5, 4))
    transition = nn.Parameter(torch.randn(3, 3))
    allowed = torch.tensor([[True, True, False], [False, True, True], [True, False, True]])
    score = transition.masked_fill(~allowed, -inf)
    alpha = emission[0]
    for step in emission[1:]:
        alpha = torch.logsumexp(alpha[:, None] + score, 0) + step
    best = emission[0][0] + score[0, 1] + emission[1][1]
    (alpha.logsumexp(0) - best).backward()


@program("undefined forward div", operands="0")
def filter_that_is_certain():
    """A Kalman filter without noise: after one exact measurement the gain is 0 / 0."""
    noise = torch.zeros((), requires_grad=True)
    mean, variance = torch.zeros(()), torch.ones(())
    for seen in torch.tensor([0.3, 0.4, 0.35]):
        gain = variance / (variance + noise)  # born
        mean = mean + gain * (seen - mean)
        variance = (1 - gain) * variance
    (mean - 0.5).square().backward()


@program("undefined backward sqrt", entries=[(0, 0)])
def physics_at_the_boundary():
    """The ansatz √x · net(x) has no derivative at the boundary, and the residual asks for it."""
    net = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
    x = torch.linspace(0, 1, 5)[:, None].requires_grad_()
    u = x.sqrt() * net(x)  # born
    (slope,) = torch.autograd.grad(u.sum(), x, create_graph=True)
    (slope + u).square().mean().backward()


@program("contaminated forward linear", module="embed")
def last_step_of_padded_sequences():
    """The padding of the readings is NaN, and the loss uses each sequence's last real step alone."""

    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.rnn, self.head = nn.Linear(2, 4), nn.LSTM(4, 3, batch_first=True), nn.Linear(3, 1)

        def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
            embedded = self.embed(x)  # born
            out, _ = self.rnn(embedded)
            return self.head(out[torch.arange(len(x)), lengths - 1])

    rows = [torch.randn(n, 2).tolist() + [[nan, nan]] * (4 - n) for n in (4, 3, 1)]
    Reader()(torch.tensor(rows), torch.tensor([4, 3, 1])).square().mean().backward()


@program()
def packed_data():
    """The same padding, packed before anything is computed with it."""
    rnn = nn.GRU(2, 3, batch_first=True)
    rows = torch.tensor([[[0.1, 0.2], [0.4, -0.3], [0.5, 0.1]], [[0.3, 0.2], [nan, nan], [nan, nan]]])
    output, _ = rnn(pack_padded_sequence(rows, torch.tensor([3, 1]), batch_first=True))
    padded, _ = pad_packed_sequence(output, batch_first=True)
    padded.square().mean().backward()


@program("undefined forward div", operands="0", module="first", entries=[(3, 0), (3, 1)])
def message_passing_to_an_isolated_node():
    """Messages are added up by node, and divided by how many there were; the fourth node has none."""

    class Mean(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(2, 2)

        def forward(self, x: Tensor, edges: Tensor) -> Tensor:
            source, target = edges
            message = self.lin(x)[source]
            total = torch.zeros_like(x).index_add(0, target, message)
            count = torch.zeros(len(x), 1).index_add(0, target, torch.ones(len(source), 1))
            return total / count  # born

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = Mean(), Mean()

        def forward(self, x: Tensor, edges: Tensor) -> Tensor:
            return self.second(self.first(x, edges).relu(), edges)

    edges = torch.tensor([[0, 1, 2, 3], [1, 2, 0, 0]])
    Net()(torch.randn(4, 2), edges).square().mean().backward()


@program()
def attention_over_edges():
    """The softmax by node starts from a maximum of −inf, which stays at the isolated node alone and is never read."""
    h = nn.Linear(3, 2)(torch.randn(4, 3))
    source, target = torch.tensor([[0, 1, 2, 0], [1, 2, 1, 2]])
    score = (h[source] * h[target]).sum(1)
    highest = torch.full((4,), -inf).scatter_reduce(0, target, score.detach(), "amax")
    weight = (score - highest[target]).exp()
    total = torch.zeros(4).scatter_add(0, target, weight)
    out = torch.zeros(4, 2).index_add(0, target, (weight / total[target])[:, None] * h[source])
    out.square().mean().backward()


@program("undefined forward log", operands="0")
def focal_loss_of_a_sure_mistake():
    """The probability of the right answer underflows to 0, and its log is −inf."""
    logits = torch.tensor([0.5, -800.0, 2.0], requires_grad=True)
    p = logits.sigmoid()
    right = torch.where(torch.tensor([True, True, False]), p, 1 - p)
    loss = -((1 - right) ** 2 * torch.log(right)).mean()  # born
    loss.backward()


@program("undefined forward div", operands="0", entries=[(1,)])
def overlap_of_boxes_without_area():
    """Two boxes without area have a union of 0."""
    predicted = torch.tensor([[0.1, 0.1, 0.6, 0.5], [0.3, 0.3, 0.3, 0.3]], requires_grad=True)
    target = torch.tensor([[0.2, 0.0, 0.7, 0.6], [0.8, 0.8, 0.8, 0.9]])
    low, high = torch.maximum(predicted[:, :2], target[:, :2]), torch.minimum(predicted[:, 2:], target[:, 2:])
    overlap = (high - low).clamp(min=0).prod(1)
    areas = [(box[:, 2:] - box[:, :2]).prod(1) for box in (predicted, target)]
    iou = overlap / (areas[0] + areas[1] - overlap)  # born
    (1 - iou).mean().backward()


@program("undefined forward log", operands="0")
def mixture_far_from_its_target():
    """A mixture density network: each component's density underflows to 0 at a target that is 60 away."""
    head = nn.Linear(3, 9)
    x, y = torch.randn(4, 3), torch.tensor([[0.1], [0.5], [60.0], [-0.2]])
    weight, mean, log_width = head(x).chunk(3, dim=1)
    width = log_width.exp()
    density = torch.exp(-0.5 * ((y - mean) / width) ** 2) / (width * math.sqrt(2 * math.pi))
    likelihood = (weight.softmax(1) * density).sum(1)
    loss = -likelihood.log().mean()  # born
    loss.backward()


@program("undefined forward div", operands="0")
def distribution_of_no_weights():
    """A router's weights are all 0, by relu, and torch.distributions divides them by their sum."""
    weights = (nn.Linear(2, 3)(torch.randn(4, 2)) - 9).relu()
    router = torch.distributions.Categorical(probs=weights, validate_args=False)  # born
    (-router.log_prob(torch.tensor([0, 1, 2, 0])).sum()).backward()


@program("undefined forward div", operands="0")
def quaternion_of_nothing():
    """A network whose head begins at 0 predicts the quaternion 0, which has no direction."""
    head = nn.Linear(3, 4)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    q = head(torch.randn(2, 3))
    unit = q / q.norm(dim=1, keepdim=True)  # born
    (unit - torch.tensor([1.0, 0.0, 0.0, 0.0])).square().sum().backward()


@program("contaminated forward div", operands="0")
def rotation_by_the_angle_zero():
    """sin θ / θ is 0 / 0 at the identity, and its Taylor series is taken there."""
    square = torch.tensor([0.0, 0.25, 1.0], requires_grad=True)
    angle = square + 0
    sinc = torch.sin(angle) / angle  # born
    torch.where(angle < 1e-4, 1 - angle**2 / 6, sinc).sum().backward()


@program("undefined backward acos")
def distance_on_a_sphere():
    """The spherical law of cosines: a point at distance 0 of itself, where acos has no slope."""
    home = torch.tensor([[0.0, 0.0], [0.5, 1.0]], requires_grad=True)
    there = torch.tensor([[0.0, 0.0], [0.3, 0.2]])
    a, b, turn = home[:, 0], there[:, 0], home[:, 1] - there[:, 1]
    cosine = a.sin() * b.sin() + a.cos() * b.cos() * turn.cos()
    distance = torch.acos(cosine)  # born
    distance.sum().backward()


@program("undefined backward sqrt", operands="0")
def haversine_of_equal_points():
    """The haversine formula has a root of 0 there."""
    home = torch.tensor([[0.7, 0.1], [0.5, 1.0]], requires_grad=True)
    there = torch.tensor([[0.7, 0.1], [0.3, 0.2]])
    half = ((home - there) / 2).sin().square()
    h = half[:, 0] + home[:, 0].cos() * there[:, 0].cos() * half[:, 1]
    distance = 2 * torch.asin(torch.sqrt(h))  # born
    distance.mean().backward()


@program("undefined forward log", operands="0")
def log_spectrum_of_silence():
    """The second half of a recording is silent, and a spectrogram's magnitude 0."""
    gain = torch.ones((), requires_grad=True)
    sound = torch.cat([torch.randn(64), torch.zeros(192)]) * gain
    spectrum = torch.stft(sound, 32, window=torch.hann_window(32), return_complex=True)
    loudness = spectrum.abs().log()  # born
    loudness.mean().backward()


@program("undefined backward pow")
def compressed_spectrum_of_silence():
    """Magnitudes to the power 0.3: |z| has the slope 0 at 0, and the power an infinite one."""
    filtered = nn.Linear(16, 16, bias=False)(torch.stack([torch.randn(16), torch.zeros(16)]))
    magnitude = torch.fft.rfft(filtered).abs()
    compressed = magnitude**0.3  # born
    compressed.sum().backward()


@program("undefined forward div")
def spectral_convergence():
    """The distance of two spectra relative to that of the target, which is silent: a number over 0."""
    target, made = torch.zeros(32), nn.Parameter(torch.randn(32))
    difference = torch.fft.rfft(made).abs() - torch.fft.rfft(target).abs()
    loss = difference.norm() / torch.fft.rfft(target).abs().norm()  # born
    loss.backward()


@program()
def magnitude_of_complex_zero():
    """|z| has the subgradient 0 at 0."""
    z = torch.tensor([0j, 3 + 4j], requires_grad=True)
    z.abs().sum().backward()


@program("undefined forward logit", operands="1", entries=[(0, 2)])
def flow_with_a_white_pixel():
    """A normalising flow begins with the logit of the image, and a white pixel has none."""
    scale = nn.Parameter(torch.ones(4))
    image = torch.tensor([[0.2, 0.5, 1.0, 0.7], [0.1, 0.9, 0.4, 0.3]])
    z = torch.logit(image) * scale  # born
    (0.5 * z.square().sum(1) - scale.abs().log().sum()).mean().backward()


@program("contaminated forward exp", operands="110")
def importance_weight_that_is_truncated():
    """V-trace truncates the weights at 1: the one that overflowed does not count."""
    log_p = torch.tensor([-0.2, -10.0, -1.5], requires_grad=True)
    behaviour = torch.tensor([-0.3, -120.0, -1.0])
    rho = torch.exp(log_p - behaviour)  # born
    clipped = rho.clamp(max=1.0)
    advantage = torch.tensor([0.5, -1.0, 2.0])
    (-(clipped * advantage).sum()).backward()


@program("undefined forward div", operands="0")
def transport_with_little_entropy():
    """Sinkhorn's kernel exp(−C / ε) underflows to a row of zeros for ε = 0.001: a / 0."""
    x, y = torch.randn(3, 2, requires_grad=True), torch.randn(4, 2) + 5
    kernel = torch.exp(-torch.cdist(x, y) / 1e-3)
    v = torch.ones(4)
    for _ in range(3):
        u = torch.full((3,), 1 / 3) / (kernel @ v)  # born
        v = torch.full((4,), 1 / 4) / (kernel.T @ u)
    (u[:, None] * kernel * v * torch.cdist(x, y)).sum().backward()


@program()
def soft_alignment_with_a_border():
    """Soft-DTW: the table's border is infinite, and each soft minimum has one finite way."""
    x, y = nn.Parameter(torch.randn(3, 2)), torch.randn(4, 2)
    cost = torch.cdist(x, y).square()
    border = torch.tensor(inf)
    table = {(i, 0): border for i in range(1, 4)} | {(0, j): border for j in range(1, 5)}
    table[0, 0] = torch.zeros(())
    for i in range(1, 4):
        for j in range(1, 5):
            ways = torch.stack([table[i - 1, j], table[i, j - 1], table[i - 1, j - 1]])
            table[i, j] = cost[i - 1, j - 1] - torch.logsumexp(-ways, 0)
    table[3, 4].backward()


@program("undefined forward softmax", module="attention")
def attention_with_slopes_and_a_padded_row():
    """ALiBi and a window: the first query may look at padding alone, and a float mask multiplies its NaN by 0."""

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(4, 12)

        def forward(self, x: Tensor, real: Tensor) -> Tensor:
            q, k, v = self.qkv(x).chunk(3, dim=-1)
            at = torch.arange(len(x))
            bias = -0.5 * (at[:, None] - at).abs()
            seen = (at[:, None] >= at) & real
            weights = (q @ k.T + bias).masked_fill(~seen, -inf).softmax(-1)  # born
            return weights @ v

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.head = Attention(), nn.Linear(4, 1)

        def forward(self, x: Tensor, real: Tensor) -> Tensor:
            return self.head(self.attention(x, real))[:, 0]

    real = torch.tensor([False, True, True, True])
    (Net()(torch.randn(4, 4), real).square() * real.float()).sum().backward()


@program("undefined forward _weight_norm")
def weight_norm_of_zeros():
    """A layer that begins at 0 under weight norm: 0 · g / 0."""
    layer = weight_norm(nn.Linear(3, 2))
    with torch.no_grad():
        layer.parametrizations.weight.original1.zero_()
    y = layer(torch.randn(4, 3))  # born
    y.square().mean().backward()


@program()
def gradient_clipped_by_a_norm_of_zero():
    """max / 0 is infinite, and the minimum with 1 is 1."""
    weight = torch.zeros(3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        weight.square().sum().backward()
        with torch.no_grad():
            factor = torch.clamp(1.0 / weight.grad.norm(), max=1.0)
            weight.grad.mul_(factor)
        optimizer.step()


@program("undefined forward div", operands="0")
def adam_by_hand_without_epsilon():
    """A feature that is never active has a gradient of 0: 0 / √0, and from the second step on all is NaN."""
    weight = torch.randn(3, requires_grad=True)
    x = torch.randn(8, 3) * torch.tensor([1.0, 1.0, 0.0])
    first, second = torch.zeros(3), torch.zeros(3)
    for _ in range(4):
        loss = (x @ weight - 1).square().mean()
        weight.grad = None
        loss.backward()
        with torch.no_grad():
            first = 0.9 * first + 0.1 * weight.grad
            second = 0.99 * second + 0.01 * weight.grad.square()
            weight -= 0.1 * first / second.sqrt()  # born


@program("undefined forward div")
def spectrum_relative_to_its_mean():
    """A signal without a mean has a zeroth frequency of 0."""
    signal = torch.tensor([1.0, -1.0, 2.0, -2.0], requires_grad=True)
    spectrum = torch.fft.fft(signal)
    relative = spectrum / spectrum[0]  # born
    relative.abs().sum().backward()


@program("undefined backward linalg_svd")
def singular_vectors_of_the_identity():
    """Singular values that are equal leave the vectors undetermined: 1 / (s² − s²)."""
    matrix = torch.eye(3, requires_grad=True)
    u, _, vh = torch.linalg.svd(matrix)  # born
    (u[:, 0] + 2 * vh[0]).sum().backward()


@program("undefined forward linalg_slogdet")
def gaussian_with_a_singular_covariance():
    """Two of the features are the same: the log of a determinant that is 0."""
    factor = torch.tensor([[1.0, 2.0], [1.0, 2.0]], requires_grad=True)
    covariance = factor @ factor.T
    log_determinant = torch.linalg.slogdet(covariance)[1]  # born
    (0.5 * log_determinant).backward()


@program()
def normalised_adjacency():
    """The isolated node's degree ** −0.5 is infinite, and no edge reads it."""
    edges = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    degree = torch.zeros(4).index_add(0, edges[0], torch.ones(4))
    scale = degree.pow(-0.5)
    adjacency = torch.zeros(4, 4).index_put(tuple(edges), scale[edges[0]] * scale[edges[1]])
    h = nn.Linear(3, 2)(torch.randn(4, 3))
    (adjacency @ h).square().mean().backward()


@program()
def table_whose_gaps_are_skipped():
    """Results are written into a table of NaN, and the mean is of what is there."""
    errors = nn.Linear(2, 1)(torch.randn(3, 2))[:, 0].square()
    table = torch.full((4,), nan).index_put((torch.tensor([0, 1, 3]),), errors)
    table.nanmean().backward()


@program("undefined forward div", operands="0")
def depth_of_an_empty_ray():
    """Volume rendering: a ray through nothing has no weights to average depths by; cumprod passes a 0 unharmed."""
    density = torch.tensor([[0.5, 2.0, 300.0], [0.0, 0.0, 0.0]], requires_grad=True)
    opacity = 1 - torch.exp(-density)
    through = torch.cumprod(torch.cat([torch.ones(2, 1), 1 - opacity[:, :-1]], 1), 1)
    weight = opacity * through
    depth = (weight * torch.tensor([1.0, 2.0, 3.0])).sum(1) / weight.sum(1)  # born
    depth.mean().backward()


@program()
def products_with_a_zero():
    """cumprod and prod have right derivatives at 0."""
    x = torch.tensor([2.0, 0.0, 3.0], requires_grad=True)
    (x.cumprod(0).sum() + x.prod()).backward()


@program("contaminated forward div", operands="0", entries=[(0, 0, 1, 0)])
def depth_of_no_disparity():
    """depth = f / disparity is infinite at one pixel; it is enlarged, and masked where nothing was measured."""
    disparity = torch.tensor([[[[1.0, 2.0], [0.0, 4.0]]]], requires_grad=True)
    depth = 8.0 / disparity  # born
    large = F.interpolate(depth, scale_factor=2, mode="nearest")
    measured = torch.ones(1, 1, 4, 4)
    measured[..., 2:, :2] = 0
    (large - 1.5).abs()[measured > 0].mean().backward()


@program("overflow forward einsum")
def einsum_in_half_precision():
    """The scores of attention in float16: 16 · 80 · 80 is more than 65,504."""
    q = torch.full((1, 2, 16), 80.0, dtype=torch.half, requires_grad=True)
    k = torch.full((1, 3, 16), 80.0, dtype=torch.half)
    scores = torch.einsum("bqd,bkd->bqk", q, k)  # born
    (scores * 0.25).softmax(-1).float().square().sum().backward()


@program("undefined forward mul", entries=[(0, 2), (1, 0)])
def entropy_of_a_policy_with_illegal_actions():
    """An illegal action has the probability 0 and the log-probability −inf: 0 · inf."""
    legal = torch.tensor([[True, True, False], [False, True, True]])
    logits = nn.Linear(4, 3)(torch.randn(2, 4)).masked_fill(~legal, -inf)
    log_p = logits.log_softmax(1)
    entropy = -(logits.softmax(1) * log_p).sum(1)  # born
    (-0.01 * entropy.mean()).backward()


@program("undefined backward special_entr")
def entropy_of_causal_attention():
    """special.entr(0) is 0, as it should be, and its slope is infinite."""
    scores = nn.Linear(4, 4)(torch.randn(4, 4)).masked_fill(torch.ones(4, 4).triu(1).bool(), -inf)
    entropy = torch.special.entr(scores.softmax(-1)).sum(-1)  # born
    entropy.mean().backward()


@program("undefined backward xlogy")
def x_log_x_at_zero():
    """xlogy(0, 0) is 0, and its slope by the second argument 0 / 0."""
    p = torch.tensor([0.0, 0.4, 0.6], requires_grad=True)
    (-torch.xlogy(p, p).sum()).backward()  # born


@program("undefined backward hypot")
def hypotenuse_of_nothing():
    """hypot(0, 0) is 0, and its slope x / hypot is 0 / 0."""
    a = torch.tensor([3.0, 0.0], requires_grad=True)
    b = torch.tensor([4.0, 0.0])
    torch.hypot(a, b).sum().backward()  # born


@program("overflow forward poisson_nll_loss", operands="100")
def counts_of_a_large_rate():
    """The loss takes exp of the predicted log rate, which is 100."""
    rate = torch.tensor([0.5, 100.0], requires_grad=True)
    loss = nn.PoissonNLLLoss()(rate, torch.tensor([1.0, 3.0]))  # born
    loss.backward()


@program("undefined forward lgamma", operands="0")
def beta_binomial_without_weight():
    """A concentration of 0, by relu, has no gamma function."""
    concentration = nn.Parameter(torch.tensor([1.5, -0.3])).relu()
    n = torch.tensor([3.0, 4.0])
    loss = (torch.lgamma(concentration) - torch.lgamma(concentration + n)).sum()  # born
    loss.backward()


@program("undefined forward group_norm", module="1")
def group_norm_without_eps():
    """A group of two channels that are 0 has a variance of 0, and nothing is added to it."""
    model = nn.Sequential(nn.Linear(3, 4), nn.GroupNorm(2, 4, eps=0.0))
    with torch.no_grad():
        model[0].weight[2:], model[0].bias[2:] = 0.0, 0.0
    y = model(torch.randn(5, 3))  # born
    y.square().mean().backward()


@program("bad input forward lstm", module="rnn")
def reading_that_is_missing():
    """One time step of one series is NaN, and the recurrent net uses it."""

    class Series(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.head = nn.LSTM(2, 3, num_layers=2), nn.Linear(3, 1)

        def forward(self, x: Tensor) -> Tensor:
            out, _ = self.rnn(x)  # born
            return self.head(out[-1])

    x = torch.tensor([*torch.randn(2, 2, 2).tolist(), [[0.1, nan], [0.3, 0.2]], *torch.randn(1, 2, 2).tolist()])
    Series()(x).square().mean().backward()


@program("undefined forward div", operands="0")
def feature_that_never_changes():
    """A constant column is standardised: 0 / 0, before the model sees it."""
    x = torch.randn(6, 3)
    x[:, 1] = 2.0
    standard = (x - x.mean(0)) / x.std(0)  # born
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    model(standard).square().mean().backward()


@program()
def noise_schedule_with_an_infinite_ratio():
    """The first signal-to-noise ratio is 1 / 0, and the minimum with 5 drops it."""
    alpha = torch.cumprod(torch.tensor([1.0, 0.9, 0.7, 0.4]), 0)
    ratio = alpha / (1 - alpha)
    weight = torch.minimum(ratio, torch.tensor(5.0))
    model = nn.Linear(2, 2)
    x = torch.randn(4, 2)
    (weight * (model(x) - x).square().mean(1)).mean().backward()


@program("overflow forward exp")
def partial_likelihood_of_a_large_risk():
    """Cox: exp of a log risk of 95, summed over those at risk."""
    risk = torch.tensor([0.3, 95.0, -0.2], requires_grad=True)
    at_risk = risk.exp().flip(0).cumsum(0).flip(0)  # born
    (at_risk.log() - risk).mean().backward()


@program("undefined forward pow", operands="0")
def hazard_at_birth():
    """A Weibull hazard (t / λ) ** (k − 1) with k < 1 has a pole at t = 0."""
    shape = torch.tensor(0.5, requires_grad=True)
    t = torch.tensor([0.0, 1.0, 2.5])
    hazard = shape * t ** (shape - 1)  # born
    hazard.sum().backward()


@program("undefined forward div", operands="0")
def option_that_expires_today():
    """Black and Scholes: log(S / K) / (σ √T) is 0 / 0 for an option at the money that expires today."""
    sigma = torch.tensor(0.2, requires_grad=True)
    spot, strike, time = torch.tensor([100.0, 90.0]), torch.tensor([100.0, 100.0]), torch.tensor([0.0, 1.0])
    d1 = (torch.log(spot / strike) + 0.5 * sigma**2 * time) / (sigma * time.sqrt())  # born
    price = spot * 0.5 * (1 + torch.erf(d1 / math.sqrt(2)))
    price.sum().backward()


@program("contaminated forward sqrt", operands="-3")
def ray_that_misses():
    """A ray that misses the sphere has a negative discriminant, and its colour is the background's."""
    b = torch.tensor([2.0, 1.0], requires_grad=True)
    c = torch.tensor([1.0, 4.0])
    discriminant = b * b - c
    distance = b - torch.sqrt(discriminant)  # born
    torch.where(discriminant > 0, distance, 10.0).sum().backward()


@program("contaminated backward pow", operands="0")
def tone_curve():
    """sRGB: a black pixel is on the straight part, and the power's slope at 0 is infinite."""
    linear = torch.tensor([0.0, 0.001, 0.5], requires_grad=True)
    curved = 1.055 * linear ** (1 / 2.4) - 0.055  # born
    torch.where(linear <= 0.0031308, 12.92 * linear, curved).sum().backward()


@program()
def half_precision_mask_of_a_billion():
    """−1e9 · 1 is −inf in float16, and the softmax takes it as it was meant."""
    x = nn.Linear(4, 4)(torch.randn(3, 4)).half()
    padding = torch.tensor([0.0, 0.0, 1.0]).half()
    weights = (x @ x.T + padding * -1e9).softmax(-1)
    (weights @ x).float().square().mean().backward()


@program("contaminated forward div", operands="0")
def sampling_behind_the_camera():
    """A point in the camera's plane is projected to infinity; a colour of its own is chosen for it afterwards."""
    image = torch.rand(1, 1, 4, 4)
    points = torch.tensor([[0.2, 0.1, 1.0], [0.3, 0.4, 0.0]], requires_grad=True)
    projected = points[:, :2] / points[:, 2:]  # born
    colour = F.grid_sample(image, projected[None, None], align_corners=False)[0, 0, 0]
    torch.where(points[:, 2] > 0, colour, 0.5).sum().backward()


@program("contaminated forward log", "undefined backward sqrt")
def reconstruction_and_regulariser():
    """Two mistakes in one loss: a log of zero counts that is masked, and a norm by hand of zero weights."""
    rate = nn.Linear(3, 3)(torch.eye(3)).abs() * torch.tensor([1.0, 0.0, 1.0])
    offset = nn.Parameter(torch.zeros(3))
    log_rate = torch.log(rate)  # born 1
    fit = torch.where(rate > 0, rate - log_rate, rate).sum()
    size = offset.square().sum().sqrt()  # born 2
    (fit + 0.1 * size).backward()
