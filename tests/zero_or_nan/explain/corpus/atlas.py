"""Points where a function of one tensor has no slope or value, or one that is too large: used, and under `where`.

The sum of each function is its loss. Below them are functions that do no harm at such a point.
"""

import torch
import torch.nn.functional as F
from torch import nn

from .program import point, program

inf, nan = float("inf"), float("nan")
half = torch.half

# A value or a slope that does not exist, and that the loss uses.
point("gamma correction of black", "undefined backward pow", [0.2, 0.0, 0.4], lambda x: x**0.45, entries=[(1,)])
point("signed cube root", "undefined backward pow", [-8.0, 0.0, 27.0], lambda x: x.sign() * x.abs() ** (1 / 3))
point("penalty of degree one half", "undefined backward pow", [0.5, 0.0], lambda w: w.abs() ** 0.5, operands="0")
point("inverse of a zero charge", "undefined forward pow", [0.5, 0.0, 2.0], lambda x: x**-1.0, entries=[(1,)])
point("cube root of a negative", "undefined forward pow", [-8.0, 27.0], lambda x: x ** (1 / 3), entries=[(0,)])
point("hypot at the origin", "undefined backward hypot", [3.0, 0.0], lambda x: x.hypot(4 / 3 * x), entries=[(1,)])
point("angle of a vector with itself", "undefined backward acos", [1.0, 0.6], lambda x: x.acos(), operands="1")
point("pitch at the pole", "undefined backward asin", [[0.1, -0.3], [0.5, 1.0]], lambda x: x.asin(), entries=[(1, 1)])
point("root at zero", "undefined backward sqrt", [0.0, 4.0], lambda x: x.sqrt(), thread="pytorch#6394", operands="0")
point("deviation of equal entries", "undefined backward sqrt", [[1.0, 2.0], [3.0, 3.0]], lambda x: x.var(dim=1).sqrt())
point("sinc by hand", "undefined forward div", [-1.0, 0.5, 0.0, 2.0], lambda x: x.sin() / x, entries=[(2,)])
point("harmonic mean of a zero", "undefined forward div", [3.0, 0.0, 6.0], lambda x: 3 / (1 / x).sum(), operands="0")
point("mean of an empty selection", "undefined forward mean", [0.1, 0.4], lambda x: x[x > 0.5].mean())
point("p log p", "undefined forward log", [0.0, 0.25, 0.75], lambda p: p * p.log(), entries=[(0,)], operands="0")
point("product by logarithms", "undefined forward log", [2.0, 0.0, 3.0], lambda x: x.log().sum().exp(), operands="0")
point("entropy by xlogy", "undefined backward xlogy", [0.0, 0.25, 0.75], lambda p: torch.xlogy(p, p), entries=[(0,)])
point("entropy by entr", "undefined backward special_entr", [0.0, 0.4], lambda p: torch.special.entr(p))
point("white pixel", "undefined forward logit", [0.2, 1.0, 0.7], lambda x: x.logit(), operands="1", entries=[(1,)])
point("beta binomial without weight", "undefined forward lgamma", [1.5, 0.0], lambda x: x.lgamma(), operands="0")
point("lost investment", "undefined forward log1p", [0.1, -1.0], lambda x: x.log1p(), operands="-1")
point("degree of an isolated node", "undefined forward rsqrt", [1.0, 0.0], lambda x: x.rsqrt(), operands="0")
point("determinant of equal rows", "undefined forward logdet", [[1.0, 1.0], [1.0, 1.0]], lambda x: x.logdet())
point("equal eigenvalues", "undefined backward linalg_eigh", [[1.0, 0], [0, 1]], lambda x: torch.linalg.eigh(x)[1] @ x)
point(
    "variance by cancellation", "overflow forward sqrt", [100.1] * 6, lambda x: ((x**2).mean() - x.mean() ** 2).sqrt()
)
point("row of nothing", "undefined forward softmax", [1.0, 2.0], lambda x: x.masked_fill(x > 0, -inf).softmax(0))
point("sum of nothing", "undefined forward logsumexp", [1.0, 2.0], lambda x: x.masked_fill(x > 0, -inf).logsumexp(0))
point(
    "spectrum by its mean",
    "undefined forward div",
    [1.0, -1.0],
    lambda x: (torch.fft.fft(x) / torch.fft.fft(x)[0]).abs(),
)

# The same, in elements that the loss ignores.
point(
    "curve under where", "contaminated backward pow", [0.2, 0.0], lambda x: torch.where(x <= 0.003, 12.92 * x, x**0.4)
)
point("roots that are indexed away", "contaminated backward pow", [0.0, 0.3], lambda x: (x**0.5)[1:].square())
point("xlogy under a fill", "contaminated backward xlogy", [0.5, 0.0], lambda p: p.xlogy(p).masked_fill(p == 0, 0.0))
point("root under where", "contaminated backward sqrt", [0.0, 4.0], lambda x: torch.where(x > 0, x.sqrt(), 0.0))
point(
    "root under a relu",
    "contaminated backward sqrt",
    [4.0, 0.0, 9.0],
    lambda x: (x.sqrt() - 1.0).relu(),
    entries=[(1,)],
)
point("sinc under where", "contaminated forward div", [0.5, 0.0], lambda x: torch.where(x == 0, 1.0, x.sin() / x))
point("ratio on no path", "contaminated forward div", [1.0], lambda x: torch.where(x >= 0, x, 0 * (x / 0)))
point("cutoff", "contaminated forward cos", [0.0, inf], lambda x: torch.where(x < 1.0, x.cos(), 0.0), operands="inf")
point(
    "two formulas", "contaminated forward log2", [0.0, 3.0], lambda x: torch.where(x > 2, x.log2(), 2 * x), operands="0"
)
point("some logarithms", "contaminated forward log", [0.0, 2.0], lambda x: x.log()[-1], entries=[(0,)])
point(
    "root of negatives",
    "contaminated forward sqrt",
    [-1.0, -4.0],
    lambda x: torch.where(x > 0, x.sqrt(), x),
    operands="-1",
)
point(
    "masked row",
    "contaminated forward softmax",
    [[1.0], [-1.0]],
    lambda x: (x.masked_fill(x < 0, -inf).softmax(1) * x)[:1],
)
point("clamp after exp", "contaminated forward exp", [0.5, 95.0], lambda x: x.exp().clamp(max=1000.0), entries=[(1,)])

# Numbers that are too large.
point("sigmoid by hand", "overflow forward exp", [-100.0, 0.0], lambda x: 1 / (1 + torch.exp(-x)), operands="100")
point("logsumexp by hand", "overflow forward exp", [12.0, 40.0, 90.5], lambda x: x.exp().sum().log(), entries=[(2,)])
point("inverse of a tiny number", "overflow forward div", [0.1, 1e-40], lambda x: 1.0 / x, operands="9.99995e-41")
point("norm of large numbers", "overflow forward square", [3e20, 4e20], lambda x: x.square().sum().sqrt().log())
point("polynomial of degree twelve", "overflow forward pow", [1.0, 5000.0], lambda x: x**12, operands="5000")
point("counts of a large rate", "overflow forward poisson_nll_loss", [100.0], lambda x: F.poisson_nll_loss(x, x * 0))
point(
    "square in half precision",
    "overflow forward mul",
    torch.tensor([300.0, 2.0], dtype=half),
    lambda x: x * x,
    operands="300",
)
point(
    "scores in half precision",
    "overflow forward einsum",
    torch.full((9, 9), 90.0).half(),
    lambda q: torch.einsum("ad,bd", q, q),
)
point("steep but finite", "overflow backward div", [1e-12, 2e-13], lambda x: (x / 1e-30) ** 2)
point("inverse distance", "overflow backward div", [0.5, 1e-25], lambda x: 1 / x)
point("likelihood ratio squared", "overflow backward exp", [1.0, 44.2], lambda x: x.exp() ** 2, entries=[(1,)])
point("tiny probability", "overflow backward log", [0.3, 0.7, 1e-40], lambda p: -p.log(), entries=[(2,)])
point(
    "log in half precision",
    "overflow backward log",
    torch.tensor([0.5, 1e-7]).half(),
    lambda p: -p.log(),
    entries=[(1,)],
)
point("slope of four factors", "overflow backward mul", [1e-30], lambda x: x * 1e10 * 1e10 * 1e10 * 1e10)
point(
    "cast on the way back",
    "overflow backward float",
    torch.ones(2).half(),
    lambda x: x.float() * torch.tensor([7e4, 1]),
)

# Points at which nothing is wrong.
point("norm of a zero vector", "", [0.0, 0.0], lambda z: torch.linalg.vector_norm(z, dim=0))
point("magnitude of complex zero", "", [0j, 3 + 4j], lambda z: z.abs())
point("angle of the origin", "", [0.0], lambda x: torch.atan2(x, x), thread="pytorch#166787", since="2.10")
point("power of a zero base", "", [1.0], lambda b: 0.0**b, thread="pytorch#27134")
point("gate that saturates", "", [-200.0, 0.0, 200.0], lambda x: x.tanh() + x.sigmoid() + F.softplus(x) + F.elu(x))
point("root behind a relu", "", [-1.0, 4.0], lambda x: x.relu().sqrt())
point("double where", "", [0.0, 1.0], lambda x: torch.where(x == 0, 1.0, x.sin() / torch.where(x == 0, 1.0, x)))
point("logarithm of data under where", "", [1.0, 1.0], lambda w: w * torch.where(DATA > 0, DATA.log(), 0.0))
point("logarithm under where behind a relu", "", [-1.0, 2.0], lambda x: torch.where(x > 0, x.relu().log(), 0.0))
point("rows of NaN and a bias", "", [0.0, 0.0], lambda b: (b + DATA.log())[1:].square())

DATA = torch.tensor([0.0, 2.0])


@program("undefined backward kl_div")
def target_of_zero_that_is_learned():
    """kl_div has x log x in it, whose slope at a target of 0 is infinite."""
    log_q = torch.tensor([[0.3, 0.3, 0.4]]).log()
    target = torch.tensor([[0.0, 0.5, 0.5]], requires_grad=True)
    F.kl_div(log_q, target, reduction="sum").backward()  # born


@program("undefined forward cross_entropy", thread="pytorch#70348")
def every_target_ignored():
    """The mean over no target is 0 / 0: PyTorch gives NaN on purpose."""
    model = nn.Linear(4, 3)
    loss = F.cross_entropy(model(torch.randn(5, 4)), torch.full((5,), -100))  # born
    loss.backward()


@program("contaminated backward sqrt")
def distances_off_the_diagonal():
    """The loss takes the pairs above the diagonal; the diagonal's roots at 0 are differentiated too."""
    z = nn.Linear(4, 2)(torch.randn(5, 4))
    distance = (z[:, None] - z[None]).square().sum(-1).sqrt()  # born
    F.relu(1 - distance[torch.triu(torch.ones(5, 5), 1).bool()]).mean().backward()


@program("contaminated backward linalg_eigh")
def one_degenerate_matrix_of_a_batch():
    """The eigenvectors of the identity have no derivative; the loss takes those of the other matrix."""
    batch = torch.stack([torch.eye(2), torch.tensor([[2.0, 1.0], [1.0, 3.0]])]).requires_grad_()
    values, vectors = torch.linalg.eigh(batch)  # born
    (vectors[1, :, 0].square() * values[1]).sum().backward()
