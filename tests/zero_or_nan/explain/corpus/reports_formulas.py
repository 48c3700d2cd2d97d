"""Public reports of losses, layers and formulas that give a NaN.

Each was looked up on 2026-11-23, reduced, and given its expectation before the tool saw it. A docstring says what
happens in the program, and then what its thread says of the cause and of the fix.
"""

import math
import warnings

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from .program import program

inf, nan = float("inf"), float("nan")

GUARD = r"\beps\b|1e-|clamp|vector_norm"  # what keeps a root or a denominator away from 0
WHERE = r"torch\.where|ignoring\.backward"  # threads select before the function; ignoring gives the same gradient


@program("undefined backward sqrt", thread="kornia/kornia#4229", cause="a tie", remedy=rf"{GUARD}|torch\.where")
def root_at_the_bound_of_a_maximum():
    """maximum(√0, 0) is a tie: PyTorch sends half of the gradient to the root, whose slope is infinite there. Thread:
    clamp at its bound passes the gradient on before PyTorch 2.14, as maximum does, so the guard of a root fails at 0;
    the fix puts a safe number under the root and selects with torch.where."""
    square = torch.tensor([0.0, 4.0], requires_grad=True)
    radius = torch.maximum(square.sqrt(), torch.zeros(2))  # born
    radius.sum().backward()


@program("contaminated backward sqrt", thread="kornia/kornia#4229", cause="a tie", remedy=WHERE)
def root_at_the_bound_of_a_relu():
    """relu(√0) is the same function, and the same tie: PyTorch sends nothing to the root, and 0 meets its slope.
    Thread: The cause and the fix are the same; relu is as clamp is since PyTorch 2.14."""
    square = torch.tensor([0.0, 4.0], requires_grad=True)
    radius = F.relu(square.sqrt())  # born
    radius.sum().backward()


@program(thread="LiamMa/GRIT#1")
def signed_root_of_scores():
    """√relu(x) − √relu(−x): each score has a root of 0, whose slope relu replaces by 0 on the way back. Thread: Anomaly
    mode stops at SqrtBackward0 in this line of an attention; the gradients of the layer are finite."""
    score = nn.Linear(3, 2)(torch.randn(4, 3))
    signed = torch.sqrt(torch.relu(score)) - torch.sqrt(torch.relu(-score))
    signed.square().mean().backward()


@program(
    "contaminated forward div", "undefined backward sqrt", thread="kornia/kornia#4404", remedy=rf"{GUARD}|torch\.where"
)
def exponential_of_the_zero_rotation():
    """sin(θ/2) / θ is 0 / 0 in the branch that isn't taken; behind it is the root of 0 that gives θ to the cosine.
    Thread: All exp and log of SO(3) return NaN gradients at the identity; the fix guards each singular function by a
    safe argument, and there are two of them."""
    v = torch.zeros(1, 3, requires_grad=True)
    theta = v.square().sum(-1, keepdim=True).sqrt()  # born 2
    ratio = (theta / 2).sin() / theta  # born 1
    imaginary = torch.where(theta != 0, ratio, 0.5) * v
    real = (theta / 2).cos()
    torch.cat([real, imaginary], -1).sum().backward()


@program("contaminated forward log", thread="kornia/kornia#4183", operands="0", remedy=WHERE)
def distance_transform_of_a_sparse_mask():
    """The log of a convolution that is 0 is replaced by 0 through nan_to_num, and its slope is not. Thread:
    distance_transform returns NaN gradients wherever its convolution is 0; the fix takes the log of
    torch.where(positive, cdt, 1)."""
    mask = torch.zeros(1, 1, 7)
    mask[0, 0, 1] = 1.0
    boundary = mask.requires_grad_()
    near = F.conv1d(boundary, torch.tensor([[[0.3, 1.0, 0.3]]]), padding=1)
    distance = torch.nan_to_num(-0.35 * torch.log(near), nan=0.0, posinf=0.0, neginf=0.0)  # born
    distance.sum().backward()


@program("contaminated forward div", thread="kornia/kornia#3949", operands="0", remedy=WHERE)
def axis_and_angle_of_the_identity():
    """The angle over the sine of its half is 0 / 0 at the identity, where a constant 2 is taken. Thread:
    quaternion_to_axis_angle has NaN gradients at (1, 0, 0, 0): torch.where sends gradients through both arms. The fix
    gives the root and the division a safe argument."""
    q = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.8, 0.6, 0.0, 0.0]], requires_grad=True)
    real, imaginary = q[:, 0], q[:, 1:]
    squared_sine = imaginary.square().sum(-1)
    sine = torch.sqrt(squared_sine)
    over_sine = 2 * torch.atan2(sine, real) / sine  # born
    factor = torch.where(squared_sine > 0, over_sine, 2.0)
    (factor[:, None] * imaginary).sum().backward()


@program(
    "undefined forward log", thread="cpnota/autonomous-learning-library#139", cause="a negative number",
    remedy=r"negative", fails=r"clamp_min|clamp\(min",
)  # fmt: skip
def squashed_action_that_was_scaled_too_early():
    """1 − a² is negative for an action that was scaled by 2 after its tanh, and has no logarithm. Thread: The log is
    NaN if tanh_scale is larger than 1; the fix uses the unscaled tanh. A clamp would hide the mistake."""
    policy = nn.Linear(3, 2)
    raw = policy(torch.randn(5, 3)) * 3
    action = 2.0 * raw.tanh()
    correction = torch.log(1 - action.pow(2) + 1e-6)  # born
    (-correction.sum(1).mean()).backward()


@program(
    "undefined forward pow", thread="prateekbhustali/Physics-Informed-Neural-Networks#1", cause="a negative number",
    remedy=r"negative",
)  # fmt: skip
def diffusion_with_a_negative_density():
    """A physics-informed net predicts a density, which may be negative, and the equation has its power 1.2. Thread: The
    loss is NaN after one iteration. The author: the net may return negative numbers, and their power is NaN."""
    net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    at = torch.rand(6, 2, requires_grad=True)
    density = net(at)
    flux = density**1.2  # born
    (slope,) = torch.autograd.grad(density.sum(), at, create_graph=True)
    (bend,) = torch.autograd.grad(flux.sum(), at, create_graph=True)
    (slope[:, 1] - 0.1 * bend[:, 0]).square().mean().backward()


@program(
    "undefined forward sqrt", thread="TFboys-lzz/MPSCL#2", cause="a negative number", remedy=r"clamp",
    fails=r"x \+ 1e-12",
)  # fmt: skip
def sine_of_a_cosine_above_one():
    """A cosine was rounded to 1.0000001, and 1 − cos² is negative. Thread: The 26th iteration is NaN; the author clamps
    what goes into the root to [0.0001, 1]."""
    weight = torch.tensor([1.0, 0.5, -0.2], requires_grad=True)
    cosine = weight * torch.tensor([1.0000001, 1.0, 1.0])
    sine = torch.sqrt(1.0 - cosine.pow(2))  # born
    (cosine * math.cos(0.5) - sine * math.sin(0.5)).sum().backward()


@program("undefined forward pow", thread="pyg-team/pytorch_geometric#61", cause="a negative number", remedy=r"negative")
def degree_of_negative_edges():
    """The weights of a node's edges add up to less than 0, which has no root; the test for inf doesn't see its NaN.
    Thread: deg.pow(−0.5) is NaN where the code corrects inf; weights have to be positive because of the root, says the
    author."""
    edges = torch.tensor([[0, 1, 2, 0], [1, 2, 0, 2]])
    weight = torch.tensor([0.5, -1.0, 0.7, 0.2])
    degree = torch.zeros(3).index_add(0, edges[0], weight)
    inverse = degree.pow(-0.5)  # born
    inverse = inverse.masked_fill(inverse == inf, 0)
    norm = inverse[edges[0]] * weight * inverse[edges[1]]
    h = nn.Linear(4, 2)(torch.randn(3, 4))
    torch.zeros(3, 2).index_add(0, edges[1], norm[:, None] * h[edges[0]]).square().mean().backward()


@program(
    "undefined forward smooth_l1_loss", thread="zhang-tao-whu/e2ec#7", cause="an empty mean",
    remedy=r"empty|numel|len\(|no element", fails=r"isfinite",
)  # fmt: skip
def image_without_an_instance():
    """No instance is in the batch, and the mean of no losses is 0 / 0. Thread: The smooth L1 loss of zero instances is
    NaN; the fix takes the sum of the empty tensor instead."""
    outline = nn.Linear(4, 2)(torch.randn(5, 4))
    matched = torch.zeros(5, dtype=torch.bool)
    loss = F.smooth_l1_loss(outline[matched], torch.randn(5, 2)[matched])  # born
    (loss + outline.square().mean()).backward()


@program("undefined forward ctc_loss", thread="ypwhs/captcha_break#29", remedy=r"zero_infinity|longer")
def word_with_doubled_letters():
    """Two equal letters need a blank between them: five frames are too few for four letters with two doubles. Thread:
    The loss turns NaN because target_length is too long for input_length. wenet-e2e/wenet#2299 sets
    zero_infinity=True."""
    acoustic = nn.Linear(6, 5)
    log_p = acoustic(torch.randn(5, 2, 6)).log_softmax(-1)
    letters = torch.tensor([[1, 2, 3, 4], [1, 1, 2, 2]])
    loss = F.ctc_loss(log_p, letters, torch.tensor([5, 5]), torch.tensor([4, 4]))  # born
    loss.backward()


@program(thread="wenet-e2e/wenet#2299")
def word_with_doubled_letters_left_out():
    """The same with zero_infinity=True: the infinite loss and its gradient are 0. Thread: It is the merged fix."""
    acoustic = nn.Linear(6, 5)
    log_p = acoustic(torch.randn(5, 2, 6)).log_softmax(-1)
    letters = torch.tensor([[1, 2, 3, 4], [1, 1, 2, 2]])
    F.ctc_loss(log_p, letters, torch.tensor([5, 5]), torch.tensor([4, 4]), zero_infinity=True).backward()


@program(thread="pytorch/pytorch#24816")
def batch_with_an_empty_sentence():
    """One sentence of the batch is all padding: its softmax is 0 since PyTorch 2.5, where a layer returns no weights.
    Thread: Sentences that are padded throughout make the output of a TransformerEncoder NaN, and each weight after the
    next step; setting the NaN to 0 afterwards doesn't help."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    padding = torch.tensor([[False, False, True], [True, True, True]])
    encoder(torch.randn(2, 3, 8), src_key_padding_mask=padding).square().mean().backward()


@program("undefined forward multi_head_attention_forward", thread="pytorch/pytorch#42323", remedy=r"mask")
def padding_on_the_left_of_causal_attention():
    """The first word is padding, and may see itself alone; the loss multiplies what comes of it by 0. Thread: A causal
    mask and a padding mask together leave a row nothing, and softmax gives NaN. To remove the NaN later doesn't help,
    since backward multiplies it by 0; the softmax's row has to be masked."""
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    words, padding = torch.randn(1, 4, 8), torch.tensor([[True, False, False, False]])
    causal = torch.ones(4, 4, dtype=torch.bool).triu(1)
    seen, _ = attention(words, words, words, key_padding_mask=padding, attn_mask=causal)  # born
    (seen.square().mean(-1) * (~padding).float()).sum().backward()


@program(
    "undefined backward linalg_svd", thread="pytorch/pytorch#49886", cause="equal singular values",
    remedy=r"singular|eigenvalue|distinct|equal", fails=r"isfinite",
)  # fmt: skip
def matrix_of_low_rank():
    """Two singular values are 0, and the derivative of their vectors divides by the difference. Thread: Backward
    through an SVD with several zero singular values is NaN: 1 / (σᵢ − σⱼ). pytorch#69532 asks for a decomposition that
    leaves them out."""
    matrix = torch.diag(torch.tensor([3.0, 2.0, 0.0, 0.0])).requires_grad_()
    u, _, vh = torch.linalg.svd(matrix)  # born
    (u @ vh).square()[:, 3].sum().backward()


@program("undefined backward pow", thread="pytorch/pytorch#78903", remedy=r"\beps\b|\+ 1e-", fails=r"clamp")
def root_of_a_complex_zero():
    """The root of 0 + 0j has no derivative; complex numbers can't be clamped. Thread: Backward of pow(1/2) at a complex
    zero raises in anomaly mode, and gives NaN where real numbers give inf. The thread has no fix but to keep away from
    0."""
    z = torch.tensor([0j, 1 + 1j], requires_grad=True)
    root = z.pow(0.5)  # born
    root.abs().sum().backward()


@program("undefined backward sqrt", thread="pytorch/audio#993", remedy=GUARD)
def spectrogram_of_silence():
    """The magnitude of a spectrum by hand: the root of a sum of squares that is 0 in silence. Thread:
    Spectrogram(power=1) gives NaN gradients where the signal is silent; the fix, pytorch/audio#1013, takes abs of the
    complex number."""
    gain = torch.ones((), requires_grad=True)
    sound = torch.cat([torch.randn(64), torch.zeros(128)]) * gain
    spectrum = torch.view_as_real(torch.stft(sound, 16, window=torch.hann_window(16), return_complex=True))
    magnitude = spectrum.pow(2).sum(-1).sqrt()  # born
    magnitude.mean().backward()


@program(
    "undefined forward _weight_norm", thread="google/flax#1671", remedy=r"\beps\b|initiali[sz]|weight.{0,20}(zero|0)"
)
def filter_that_was_pruned():
    """One of four filters under weight norm is 0, as pruning left it: 0 · g / 0. Thread: Gradients are NaN when a row
    of weights has the norm 0; the merged fix, google/flax#1693, keeps direction and scale apart, so that nothing is
    divided by that norm."""
    layer = weight_norm(nn.Conv1d(2, 4, 3))
    with torch.no_grad():
        layer.parametrizations.weight.original1.mul_(torch.tensor([1.0, 1.0, 0.0, 1.0])[:, None, None])
    y = layer(torch.randn(2, 2, 8))  # born
    y.square().mean().backward()


@program("undefined forward div", thread="KohakuBlueleaf/LyCORIS#166", operands="0", remedy=r"\beps\b|1e-|clamp")
def decomposed_weight_of_zero():
    """DoRA divides a weight by the norms of its rows, and one row is 0. Thread: weight_norm can be 0, which makes the
    weight NaN during training; the merged fix adds a small number to it."""
    base = torch.randn(3, 4) * torch.tensor([[1.0], [0.0], [1.0]])
    down, up = nn.Parameter(torch.randn(2, 4)), nn.Parameter(torch.zeros(3, 2))
    magnitude = nn.Parameter(torch.ones(3, 1))
    merged = base + up @ down
    weight = magnitude * merged / merged.norm(dim=1, keepdim=True)  # born
    (torch.randn(5, 4) @ weight.T).square().mean().backward()


@program(
    "overflow forward log", thread="pytorch/pytorch#15288", operands="0", remedy=r"1e-|\beps\b|clamp|xlogy|logsigmoid"
)
def divergence_of_sure_bernoullis():
    """sigmoid(30) is 1 by rounding, and log(1 − 1) is −inf. Thread: The divergence of two Bernoullis has a NaN gradient
    for logits of 30; adding 1e-16 before each log gives the same value and a finite gradient."""
    logits = torch.tensor([10.3, -6.0, 30.0], requires_grad=True)
    q, p = logits.sigmoid(), torch.full((3,), 0.5)
    there = q * (q.log() - p.log())
    absent = (1 - q) * ((1 - q).log() - (1 - p).log())  # born
    (there + absent).sum().backward()


@program(
    "undefined forward log", thread="harvardnlp/annotated-transformer#109", operands="0",
    remedy=r"log_softmax|clamp|1e-",
)  # fmt: skip
def smoothed_labels_against_a_sure_prediction():
    """A predicted probability of 0 has the log −inf, and kl_div multiplies it by a target above 0. Thread: The label
    smoothing of a tutorial returns inf, for log(0) is −inf; readers put 1e-9 in place of the 0, or take log_softmax."""
    predicted = torch.tensor([[0.0, 0.2, 0.7, 0.1]], requires_grad=True)
    target = torch.tensor([[0.0, 0.1, 0.8, 0.1]]) * 0.9 + 0.025
    loss = F.kl_div(predicted.log(), target, reduction="batchmean")  # born
    loss.backward()


@program("overflow forward exp", thread="huggingface/trl#3015", operands="100", remedy=r"clamp|clip", fails=r"x\.max\(")
def penalty_on_leaving_the_reference():
    """exp of the difference of two log-probabilities overflows when the policy drifts; its value is what is wanted.
    Thread: The KL term of GRPO is inf once the log-probabilities differ too much; the proposed fixes clamp the log-
    ratio before exp. To subtract the maximum would be another penalty."""
    policy = nn.Linear(4, 3)
    log_p = policy(torch.randn(3, 4)).log_softmax(-1)[:, 0]
    reference = log_p.detach() + torch.tensor([0.1, 100.0, -2.0])
    gap = reference - log_p
    kl = torch.exp(gap) - gap - 1  # born
    kl.mean().backward()


@program("overflow backward mul", thread="thu-ml/tianshou#19", remedy=r"clip_grad_value|scale|float64|double|\blr\b")
def infinite_gradient_that_is_clipped():
    """A gradient overflows, its norm is infinite, and clipping by the norm makes NaN of it: inf · 0. Thread:
    clip_grad_norm_ can't deal with an inf gradient, and turns it into NaN; clip_grad_value_ before it is proposed."""
    weight = nn.Parameter(torch.full((3,), 1e-38))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(2):
        h = weight * 1e20  # born
        y = h * 1e20
        loss = (y - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_([weight], 1.0)  # harmless
        optimizer.step()


@program(thread="pytorch/pytorch#46849")
def infinite_norm_of_finite_gradients():
    """Each gradient is finite, their norm is not, and clipping by it makes all of them 0: silent, and finite. Thread:
    clip_grad_norm_ silently passes when the norm isn't finite; error_if_nonfinite=True is the fix."""
    weight = nn.Parameter(torch.ones(8))
    (weight * 1e20).sum().backward()
    nn.utils.clip_grad_norm_([weight], 1.0)


@program(
    "undefined forward binary_cross_entropy_with_logits",
    thread="pytorch/pytorch#49844",
    remedy=r"finfo|finite|mask|leave",
)
def masked_logits_of_a_multilabel_loss():
    """A logit of −inf, and a target of 0 for it: (1 − y) · x is −inf, and the stable formula adds inf to it. Thread:
    BCEWithLogitsLoss is NaN with −inf logits where sigmoid and BCELoss give 0; very negative finite numbers work."""
    logits = nn.Linear(3, 4)(torch.randn(2, 3)).masked_fill(torch.tensor([False, False, True, False]), -inf)
    target = torch.tensor([[1.0, 0.0, 0.0, 1.0], [0.0, 1.0, 0.0, 0.0]])
    loss = F.binary_cross_entropy_with_logits(logits, target)  # born
    loss.backward()


@program(
    "overflow forward div", thread="kornia/kornia#4308", operands="0", cause="half precision",
    remedy=r"float16|half|float32|finfo|torch\.where",
)  # fmt: skip
def principal_point_in_half_precision():
    """The guard of 1e-8 in the denominator is 0 in float16: 0 / 0 at the principal point. Thread: undistort_points
    returns NaN in float16, because both guards underflow. The guard should be a torch.where, or follow the dtype."""
    points = torch.tensor([[0.0, 0.0], [0.5, 0.25]]).half().requires_grad_()
    radius = points.abs().sum(-1)
    factor = radius.tan() / (radius + 1e-8)  # born
    (points * factor[:, None]).float().sum().backward()


@program(
    "overflow forward exp", thread="rwightman/efficientdet-pytorch#77", operands="120",
    remedy=r"softplus|logaddexp|logsigmoid",
)  # fmt: skip
def focal_loss_with_a_softplus_by_hand():
    """log1p(exp(x)) of a logit of −120 overflows in exp. Thread: torch.exp(neg_logits) gives a NaN for a large logit;
    softplus is merged in its place."""
    logits = torch.tensor([0.3, -120.0, 2.0], requires_grad=True)
    target = torch.tensor([1.0, 1.0, 0.0])
    signed = torch.where(target == 1, -logits, logits)
    entropy = torch.log1p(torch.exp(signed))  # born
    (entropy * signed.sigmoid() ** 1.5).mean().backward()


@program("contaminated backward sqrt", thread="huggingface/sentence-transformers#4033", remedy=rf"{WHERE}|{GUARD}")
def triplet_of_identical_sentences():
    """Anchor and positive are equal, at distance 0; the triplet costs nothing, and its NaN comes back all the same.
    Thread: Equal embeddings give NaN gradients even where the triplet loss is 0; the fix is
    torch.linalg.vector_norm."""
    embed = nn.Linear(4, 3)
    anchor, positive = embed(torch.ones(2, 4)), embed(torch.ones(2, 4))
    negative = embed(torch.ones(2, 4) * 9)
    near = (anchor - positive).square().sum(1).sqrt()  # born
    far = (anchor - negative).square().sum(1).sqrt()
    F.relu(near - far + 0.1).mean().backward()


@program(
    "undefined forward div", thread="google-deepmind/optax#946", operands="0", remedy=r"\beps\b|1e-|clamp|normalize"
)
def contrastive_loss_with_an_empty_embedding():
    """An embedding is the zero vector: relu was flat for one of the images, and NT-Xent divides by its norm. Thread:
    The loss is NaN for a zero vector; where() around the division didn't help, an epsilon in the cosine similarity is
    merged."""
    embed = nn.Linear(3, 4)
    nn.init.zeros_(embed.bias)
    z = embed(torch.randn(4, 3) * torch.tensor([[1.0], [1.0], [0.0], [1.0]])).relu()
    unit = z / z.norm(dim=1, keepdim=True)  # born
    similarity = (unit @ unit.T / 0.1).masked_fill(torch.eye(4, dtype=torch.bool), -inf)
    F.cross_entropy(similarity, torch.tensor([1, 0, 3, 2])).backward()


@program("contaminated forward div", thread="Zzh-tju/DIoU-pytorch-detectron#19", remedy=WHERE)
def aspect_of_a_flat_box():
    """A proposal has no height: its aspect is infinite, atan of it is finite, and the box is masked out afterwards.
    Thread: CIoU has NaN gradients when a region has y₁ = y₂. A mask around the loss doesn't keep autograd from going
    through such regions."""
    box = torch.tensor([[200.0, 599.0, 300.0, 599.0], [10.0, 10.0, 60.0, 40.0]], requires_grad=True)
    truth = torch.tensor([[190.0, 500.0, 310.0, 590.0], [12.0, 8.0, 58.0, 44.0]])
    size, right = box[:, 2:] - box[:, :2], truth[:, 2:] - truth[:, :2]
    aspect = size[:, 0] / size[:, 1]  # born
    v = (4 / math.pi**2) * (torch.atan(right[:, 0] / right[:, 1]) - torch.atan(aspect)).square()
    v[size[:, 1] > 0].sum().backward()


@program("contaminated forward mul", thread="huggingface/trl#7221", remedy=rf"{WHERE}|xlogy|masked_fill")
def entropy_whose_nan_is_replaced():
    """A masked token has 0 · −inf, which nan_to_num replaces after the product, where it is too late for backward.
    Thread: entropy_from_logits is NaN for tokens of probability 0. A review of one fix: nan_to_num after the product
    leaves the gradients NaN; another sets −inf to 0 before it."""
    allowed = torch.tensor([[True, True, False], [True, True, True]])
    logits = nn.Linear(4, 3)(torch.randn(2, 4)).masked_fill(~allowed, -inf)
    log_p = logits.log_softmax(-1)
    weighed = log_p.exp() * log_p  # born
    entropy = -weighed.nan_to_num(nan=0.0).sum(-1)
    (-0.01 * entropy.mean()).backward()


@program(
    "undefined forward std", thread="DLR-RM/stable-baselines3#325", remedy=r"correction=0|unbiased=False|len\(|numel"
)
def advantage_of_one_step():
    """The last mini-batch has one step, and the spread of one number is 0 / 0. Thread: PPO's weights are NaN after a
    batch of size 1; the fix normalizes advantages only if there are more."""
    policy = nn.Linear(3, 2)
    log_p = policy(torch.randn(1, 3)).log_softmax(-1)[:, 0]
    advantage = torch.tensor([0.7])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns of the degrees of freedom
        spread = advantage.std()  # born
    (log_p * ((advantage - advantage.mean()) / (spread + 1e-8))).mean().backward()


@program(
    "overflow forward div", thread="bayesflow-org/bayesflow#531", operands="0",
    remedy=r"logsumexp|log_softmax|log.domain", fails=r"where\(b == 0",
)  # fmt: skip
def plan_of_transport_that_underflows():
    """exp(−cost / ε) is 0 in a whole row, for a point that is far from all: 0 / 0. Thread: The kernel underflows for a
    small regularization; one fix subtracts the maximum, another computes the plan in the log domain. To replace the 0
    by 1 would leave the point out."""
    x, y = torch.randn(3, 2) + torch.tensor([[0.0], [0.0], [9.0]]), nn.Parameter(torch.randn(4, 2))
    cost = torch.cdist(x, y)
    plan = torch.exp(-cost / 0.05)
    for _ in range(2):
        plan = plan / plan.sum(1, keepdim=True)  # born
        plan = plan / plan.sum(0, keepdim=True)
    (plan * cost).sum().backward()


@program(
    "undefined forward log", thread="pytorch/pytorch#41663", operands="0", cause="half precision",
    remedy=r"float32|float16|half|clamp",
)  # fmt: skip
def gumbel_noise_in_half_precision():
    """A sample of the exponential distribution, 2e-8, is 0 in float16, and its log −inf. Thread: gumbel_softmax of
    float16 gives NaN; Gumbel from torch.distributions, which clamps to the dtype's tiny, does not."""
    logits = torch.randn(1, 3, generator=torch.Generator().manual_seed(0)).half().requires_grad_()
    exponential = torch.tensor([[0.7, 2e-8, 1.3]]).half()
    noise = -exponential.log()  # born
    sample = (logits + noise).softmax(-1)
    sample[0, 0].float().backward()


@program("overflow forward exp", thread="vanderschaarlab/synthcity#331", remedy=r"clamp|clip", fails=r"x\.max\(")
def reparametrised_outlier():
    """The log variance of an outlier is 190, and the reparametrisation takes exp of its half. Thread: Log variances
    without bounds explode in the reparametrisation; clamp them to [−30, 20], as diffusers does."""
    encode, decode = nn.Linear(4, 4), nn.Linear(2, 4)
    nn.init.constant_(encode.weight, 0.5)
    x = torch.randn(5, 4)
    x = torch.where(torch.arange(5)[:, None] == 2, torch.full((5, 4), 95.0), x)
    mean, log_variance = encode(x).chunk(2, dim=1)
    spread = torch.exp(0.5 * log_variance)  # born
    z = mean + spread * torch.randn(5, 2)
    F.mse_loss(decode(z), x).backward()


@program(
    "overflow forward exp", module="1", thread="VincentStimper/normalizing-flows#47",
    remedy=r"clamp|clip|tanh|sigmoid", fails=r"x\.max\(",
)  # fmt: skip
def coupling_without_bounds():
    """The second coupling layer of a flow multiplies by exp of its scale, which the first one has made large. Thread:
    exp of the scale may cause inf; the report clamps z. Glow bounds the scale by a sigmoid, RealNVP by tanh."""

    class Coupling(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Linear(2, 2)
            nn.init.constant_(self.scale.weight, 1.0)

        def forward(self, z: Tensor) -> Tensor:
            first, second = z.chunk(2, dim=1)
            second = second * torch.exp(self.scale(first))  # born
            return torch.cat([second, first], 1)

    flow = nn.Sequential(Coupling(), Coupling())
    (0.5 * flow(torch.full((3, 4), 1.7)).square().sum(1)).mean().backward()


@program(
    "overflow forward exp", thread="Lightning-Universe/lightning-bolts#811", operands="100",
    remedy=r"logsumexp|log_softmax|cross_entropy",
)  # fmt: skip
def contrastive_loss_with_a_low_temperature():
    """exp(1 / 0.01) is more than float32 holds, for each embedding beside itself. Thread: e ** (1 / temperature)
    overflows for a temperature of 0.01."""
    z = F.normalize(nn.Linear(5, 3)(torch.randn(6, 5)), dim=1)
    z = torch.cat([z, z])
    power = torch.exp(z @ z.T / 0.01)  # born
    positive = power.diagonal(6)
    (-torch.log(positive / power[:6].sum(1))).mean().backward()


@program(
    "overflow forward log", thread="tonyduan/mixture-density-network#4", operands="0", remedy=r"log_softmax|logits"
)
def component_that_is_never_chosen():
    """A component's probability underflows to 0; logsumexp drops its −inf, and backward takes 0 / 0 from the log.
    Thread: Gradients of a mixture density network are NaN; the merged fix takes log_softmax of the logits in place of
    the log of the probabilities."""
    weights = torch.tensor([[3.0, 130.0, 1.0], [0.5, 0.2, 0.1]], requires_grad=True)
    log_density = -0.5 * (torch.randn(2, 1) - torch.randn(2, 3)).square()
    log_weight = weights.softmax(1).log()  # born
    (-torch.logsumexp(log_weight + log_density, 1).mean()).backward()


@program(
    "undefined forward div", thread="amirhajibabaei/AutoForce#5", operands="0",
    remedy=r"keep away|avoid|clamp|\beps\b|1e-",
)  # fmt: skip
def equation_on_a_sphere():
    """The Laplacian on a sphere divides by sin θ, which is 0 at the pole. Thread: The gradients of spherical harmonics
    are divided by sin θ, which is 0 at the pole; nan_to_num gives inconsistent gradients. A small positive number in
    place of the 0 is the workaround."""
    net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    at = torch.tensor([[0.0, 0.3], [0.7, 0.2], [1.5, 2.0]], requires_grad=True)
    (slope,) = torch.autograd.grad(net(at).sum(), at, create_graph=True)
    (bend,) = torch.autograd.grad(slope[:, 1].sum(), at, create_graph=True)
    part = bend[:, 1] / at[:, 0].sin() ** 2  # born
    part.square().mean().backward()
