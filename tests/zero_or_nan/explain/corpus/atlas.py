"""Points where a function has no slope, or none that is finite: where the loss uses it, and under `where`."""

import torch
from torch import Tensor, nn

from .program import program

inf = float("inf")


@program("undefined backward pow", entries=[(2,)], operands="0")
def gamma_correction_of_black():
    """x ** 0.45 rises vertically at 0, and one pixel is black."""
    image = torch.tensor([0.2, 0.9, 0.0, 0.4], requires_grad=True)
    corrected = image**0.45  # born
    corrected.mean().backward()


@program("contaminated backward pow", entries=[(1, 0)])
def gamma_correction_under_where():
    """The standard's linear piece is taken at 0, but the power is differentiated there too."""
    image = torch.tensor([[0.2, 0.9], [0.0, 0.4]], requires_grad=True)
    curved = 1.055 * image ** (1 / 2.4) - 0.055  # born
    encoded = torch.where(image <= 0.0031308, 12.92 * image, curved)
    encoded.sum().backward()


@program("undefined backward pow")
def signed_cube_root():
    """A cube root by sign and abs: the power's infinite slope at 0 meets the 0 of sign."""
    x = torch.tensor([-8.0, 0.0, 27.0], requires_grad=True)
    root = x.sign() * x.abs() ** (1 / 3)  # born
    root.sum().backward()


@program("undefined forward pow", entries=[(1,)], operands="0")
def inverse_of_a_zero_charge():
    """0 ** -1 is a pole: there is no value."""
    charge = torch.tensor([0.5, 0.0, 2.0], requires_grad=True)
    (charge**-1.0).sum().backward()  # born


@program("undefined backward hypot", entries=[(1,)])
def hypot_at_the_origin():
    """hypot(0, 0) is the tip of a cone: it has no slope."""
    x = torch.tensor([3.0, 0.0], requires_grad=True)
    y = torch.tensor([4.0, 0.0], requires_grad=True)
    radius = torch.hypot(x, y)  # born
    radius.sum().backward()


@program("undefined backward acos", entries=[(0,)], operands="1")
def angle_of_a_vector_with_itself():
    """acos'(1) is infinite, and a vector's cosine with itself is 1."""
    u = torch.tensor([[1.0, 0.0], [0.6, 0.8]], requires_grad=True)
    v = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    cosine = (u * v).sum(1)
    angle = torch.acos(cosine)  # born
    angle.mean().backward()


@program("undefined backward asin", entries=[(1, 1)])
def pitch_at_the_pole():
    """asin'(1) is infinite: a camera that looks straight up."""
    heights = torch.tensor([[0.1, -0.3], [0.5, 1.0]], requires_grad=True)
    pitch = heights.asin()  # born
    pitch.sum().backward()


@program("undefined backward sqrt")
def deviation_of_equal_entries():
    """The root of the variance of equal entries: var is 0 there, and sqrt'(0) infinite."""
    samples = torch.tensor([[1.0, 2.0, 4.0], [3.0, 3.0, 3.0]], requires_grad=True)
    spread = samples.var(dim=1).sqrt()  # born
    spread.sum().backward()


@program("undefined forward div", operands="0")
def standardised_constant_column():
    """(x − mean) / std of a constant column is 0 / 0."""
    features = torch.tensor([[1.0, 5.0], [2.0, 5.0], [4.0, 5.0]], requires_grad=True)
    centred = features - features.mean(0)
    standard = centred / features.std(0)  # born
    standard.square().sum().backward()


@program("undefined forward mean")
def mean_of_an_empty_selection():
    """No score is above the threshold: the mean of nothing is 0 / 0."""
    scores = torch.tensor([0.1, 0.4, 0.2], requires_grad=True)
    loss = scores[scores > 0.5].mean()  # born
    loss.backward()


@program("undefined forward logsumexp", entries=[(1,)])
def logsumexp_over_nothing():
    """Every score of the second row is masked: the log of a sum of nothing is log 0, and its slope 0 / 0."""
    scores = torch.tensor([[1.0, 2.0], [0.5, 0.1]], requires_grad=True)
    allowed = torch.tensor([[True, True], [False, False]])
    total = scores.masked_fill(~allowed, -inf).logsumexp(1)  # born
    total.sum().backward()


@program("undefined forward log", entries=[(0,)], operands="0")
def p_log_p():
    """log 0 is −inf, and 0 · −inf is NaN: the entropy by hand of a certain outcome."""
    p = torch.tensor([0.0, 0.25, 0.75], requires_grad=True)
    log_p = p.log()  # born
    entropy = -(p * log_p).sum()
    entropy.backward()


@program("undefined backward xlogy", entries=[(0,)])
def entropy_by_xlogy():
    """xlogy(0, 0) is 0, but it has no slope there."""
    p = torch.tensor([0.0, 0.25, 0.75], requires_grad=True)
    entropy = -torch.xlogy(p, p).sum()  # born
    entropy.backward()


@program("contaminated backward xlogy", entries=[(0, 2)])
def entropy_of_the_outcomes_that_can_be():
    """xlogy has no slope at 0, and the entry is filled over."""
    p = torch.tensor([[0.5, 0.5, 0.0]], requires_grad=True)
    terms = torch.xlogy(p, p)  # born
    entropy = -terms.masked_fill(p == 0, 0.0).sum()
    entropy.backward()


@program("undefined backward kl_div")
def target_of_zero_that_is_learned():
    """kl_div has x log x in it, whose slope at a target of 0 is infinite."""
    log_q = torch.tensor([[0.3, 0.3, 0.4]]).log()
    target = torch.tensor([[0.0, 0.5, 0.5]], requires_grad=True)
    loss = nn.functional.kl_div(log_q, target, reduction="sum")  # born
    loss.backward()


@program("undefined forward cross_entropy", thread="pytorch#70348")
def every_target_ignored():
    """The mean over no target is 0 / 0: PyTorch gives NaN on purpose."""
    model = nn.Linear(4, 3)
    target = torch.full((5,), -100)
    loss = nn.functional.cross_entropy(model(torch.randn(5, 4)), target)  # born
    loss.backward()


@program("undefined forward div", entries=[(2,)])
def sinc_by_hand():
    """sin(x) / x at 0 is 0 / 0."""
    x = torch.tensor([-1.0, 0.5, 0.0, 2.0], requires_grad=True)
    window = x.sin() / x  # born
    window.sum().backward()


@program("contaminated forward div", entries=[(2,)], operands="0")
def sinc_by_hand_under_where():
    """0 / 0 is replaced by its limit in forward, and comes back in the derivative."""
    x = torch.tensor([-1.0, 0.5, 0.0, 2.0], requires_grad=True)
    ratio = x.sin() / x  # born
    window = torch.where(x == 0, 1.0, ratio)
    window.sum().backward()


@program("undefined forward log", entries=[(1,)], operands="0")
def product_by_logarithms():
    """exp(sum(log x)) is 0, finite and right; but log 0 is −inf, and its slope 1 / 0."""
    factors = torch.tensor([2.0, 0.0, 3.0], requires_grad=True)
    product = factors.log().sum().exp()  # born
    product.backward()


@program("undefined backward linalg_eigh")
def eigenvectors_of_equal_eigenvalues():
    """The eigenvectors of a multiple of the identity are not determined: 1 / (λ1 − λ2) is 1 / 0."""
    covariance = torch.eye(3, requires_grad=True)
    _, vectors = torch.linalg.eigh(covariance)  # born
    loss = (vectors @ torch.tensor([1.0, 2.0, 3.0])).square()[0]
    loss.backward()


@program("undefined forward softmax", entries=[(1, 0), (1, 1)], operands="-inf")
def softmax_of_a_masked_row():
    """The mask's infinities were meant; softmax of nothing but −inf is 0 / 0."""
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    allowed = torch.tensor([[True, False], [False, False]])
    scores = (x @ x.T / 2**0.5).masked_fill(~allowed, -inf)
    weights = scores.softmax(-1)  # born
    (weights @ x).sum().backward()


@program("contaminated forward softmax", entries=[(1, 0), (1, 1)])
def softmax_of_a_masked_row_left_out():
    """The masked row is NaN, and the loss takes the other rows alone."""
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    allowed = torch.tensor([[True, False], [False, False]])
    scores = (x @ x.T / 2**0.5).masked_fill(~allowed, -inf)
    weights = scores.softmax(-1)  # born
    attended: Tensor = weights @ x
    attended[allowed.any(1)].sum().backward()


@program("contaminated backward sqrt")
def distances_off_the_diagonal():
    """The loss takes the pairs above the diagonal; the diagonal's roots at 0 are differentiated too."""
    embed = nn.Linear(4, 2)
    z = embed(torch.randn(5, 4))
    distance = (z[:, None] - z[None]).square().sum(-1).sqrt()  # born
    pairs = distance[torch.triu(torch.ones(5, 5), 1).bool()]
    nn.functional.relu(1 - pairs).mean().backward()


@program("contaminated backward linalg_eigh")
def one_degenerate_matrix_of_a_batch():
    """The eigenvectors of the identity have no derivative; the loss takes those of the other matrix."""
    batch = torch.stack([torch.eye(2), torch.tensor([[2.0, 1.0], [1.0, 3.0]])]).requires_grad_()
    values, vectors = torch.linalg.eigh(batch)  # born
    (vectors[1, :, 0].square() * values[1]).sum().backward()


@program("contaminated backward pow", entries=[(0,), (3,)])
def power_mean_of_the_positive():
    """Shares of 0 are not selected; their root is differentiated."""
    shares = torch.tensor([0.0, 0.3, 0.7, 0.0], requires_grad=True)
    roots = shares**0.5  # born
    kept = roots.index_select(0, torch.tensor([1, 2]))
    kept.sum().square().backward()
