"""Formulas of several functions that lose a number on the way, and what to write instead.

The first formula that gives the right numbers on the reader's operands is printed. Rewrites of a single function stand
beside the function.
"""

from __future__ import annotations

from .rewrites import rewrite

rewrite("log(softmax(x, dim))", "F.log_softmax(x, dim=dim)")
rewrite("log(getitem(softmax(x, dim), i))", "F.log_softmax(x, dim=dim)[i]")
rewrite("log(gather(softmax(x, dim), d, i))", "F.log_softmax(x, dim=dim).gather(d, i)")
rewrite("log(sigmoid(x))", "F.logsigmoid(x)")
rewrite("log(1 - sigmoid(x))", "F.logsigmoid(-x)")
rewrite("log1p(neg(sigmoid(x)))", "F.logsigmoid(-x)")
rewrite("log(ndtr(x))", "torch.special.log_ndtr(x)")
rewrite("log(0.5 * (1 + erf(x)))", "torch.special.log_ndtr(2**0.5 * x)")
rewrite("log(erfc(x))", "torch.special.log_ndtr(-(2**0.5) * x) + torch.tensor(2.0).log()")
for square in ("tanh(x) ** 2", "square(tanh(x))"):
    rewrite(f"log(1 - {square})", "2 * (0.6931471805599453 - x - F.softplus(-2 * x))")
rewrite("log(1 + exp(x))", "F.softplus(x)")
rewrite("log1p(exp(x))", "F.softplus(x)")
for log in ("log(1 + {})", "log1p({})"):  # losses of distances: the pairs of a batch, and a margin
    every, some = "sum(exp({}))", "sum(exp({}), dim)"
    of_every, of_some = "{}.flatten().logsumexp(0)", "{}.logsumexp(dim, keepdim=keepdim)"
    for exps, code in ((every, of_every), (some, of_some)):
        rewrite(log.format(exps.format("a")), f"F.softplus({code.format('a')})")
        product = f"{exps.format('a')} * {exps.format('b')}"
        rewrite(log.format(product), f"F.softplus({code.format('a')} + {code.format('b')})")
for log in ("log(exp(x) - 1)", "log(expm1(x))"):
    rewrite(log, "x + torch.log(-torch.expm1(-x))")
rewrite("log(cosh(x))", "x + F.softplus(-2 * x) - 0.6931471805599453")
rewrite("log(x + sqrt(x ** 2 + 1))", "x.asinh()")
rewrite("log(x + sqrt(x * x + 1))", "x.asinh()")
rewrite("log(sigmoid(x) / (1 - sigmoid(x)))", "x")
rewrite("log((1 + tanh(x)) / (1 - tanh(x)))", "2 * x")
rewrite(
    "log(sum(exp(a) * x, dim))",
    "(x * (a - a.detach().amax(dim, keepdim=True)).exp()).sum(dim, keepdim=keepdim).log()"
    " + a.detach().amax(dim, keepdim=keepdim)",
)
rewrite("log(exp(x))", "x")
rewrite("log(sum(exp(x), dim))", "x.logsumexp(dim, keepdim=keepdim)")
rewrite("log(sum(exp(x)))", "x.flatten().logsumexp(0)")
rewrite("log(mean(exp(x), dim))", "x.logsumexp(dim, keepdim=keepdim) - torch.tensor(x.shape[dim]).log()")
rewrite("log(mean(exp(x)))", "x.flatten().logsumexp(0) - torch.tensor(x.numel()).log()")
rewrite("log(cumsum(exp(x), dim))", "x.logcumsumexp(dim)")
rewrite("log(exp(a) + exp(b))", "torch.logaddexp(a, b)")
rewrite("log(1 - exp(x))", "torch.log(-torch.expm1(x))")
rewrite("log(exp(a) @ exp(b))", "(a.unsqueeze(-1) + b.unsqueeze(-3)).logsumexp(-2)")
rewrite("logsumexp(log(x), dim)", "x.sum(dim, keepdim=keepdim).log()")
rewrite(
    "logsumexp(log(x) + a, dim)",
    "(x * (a - a.detach().amax(dim, keepdim=True)).exp()).sum(dim, keepdim=keepdim).log()"
    " + a.detach().amax(dim, keepdim=keepdim)",
)
rewrite("log(prod(x))", "x.log().sum()")
rewrite("log(prod(x, dim))", "x.log().sum(dim, keepdim=keepdim)")
rewrite("log(a / b)", "a.log() - b.log()")
rewrite("log(x ** p)", "p * x.log()")
rewrite("log(det(x))", "torch.linalg.slogdet(x).logabsdet")
rewrite("log(abs(det(x)))", "torch.linalg.slogdet(x).logabsdet")
rewrite("atanh(tanh(x))", "x")
rewrite("logit(sigmoid(x))", "x")
rewrite("exp(a) / sum(exp(a), dim)", "a.softmax(dim)")
rewrite("exp(a) / sum(exp(a))", "(a - a.flatten().logsumexp(0)).exp()")
rewrite("sum(exp(a) * b, dim) / sum(exp(a), dim)", "(a.softmax(dim) * b).sum(dim, keepdim=keepdim)")
rewrite("exp(a) / exp(b)", "(a - b).exp()")
rewrite("exp(a) * exp(b)", "(a + b).exp()")
rewrite("exp(p * log(x))", "x ** p")
rewrite("exp(x) / (1 + exp(x))", "torch.sigmoid(x)")
rewrite("exp(x) / (1 + exp(x)) ** 2", "torch.sigmoid(x) * torch.sigmoid(-x)")
rewrite("exp(a) / (exp(a) + exp(b))", "torch.sigmoid(a - b)")
rewrite("(exp(x) - exp(neg(x))) / (exp(x) + exp(neg(x)))", "x.tanh()")
rewrite("(exp(x) - 1) / (exp(x) + 1)", "(x / 2).tanh()")
rewrite("(1 - exp(x)) / (1 + exp(x))", "-(x / 2).tanh()")
rewrite("exp(x) / (exp(x) - 1) ** 2", "torch.exp(-x) / torch.expm1(-x) ** 2")
rewrite("a * exp(x) / (exp(x) - 1) ** 2", "a * torch.exp(-x) / torch.expm1(-x) ** 2")
rewrite("a / (1 + exp(x))", "a * torch.sigmoid(-x)")
rewrite("a / (exp(x) - 1)", "a * torch.exp(-x) / -torch.expm1(-x)")
rewrite("a ** p / b ** p", "(a / b) ** p")
rewrite("a / (1 - sigmoid(x))", "a / torch.sigmoid(-x)")
rewrite("sqrt(exp(x))", "(x / 2).exp()")
rewrite("sqrt(a * exp(x))", "a ** 0.5 * (x / 2).exp()")
for angle, beside, term, harmless in (("acos", "1 - x", "+", 0), ("acosh", "x - 1", "-", 2)):  # two terms of its series
    near = f"({beside}) * (2 {term} ({beside}) / 3)"
    rewrite(
        f"{angle}(x) ** 2",
        f"torch.where({beside} < 1e-3, {near}, torch.where({beside} < 1e-3, {harmless}, x).{angle}() ** 2)",
    )
for square in ("x ** 2", "square(x)", "x * x"):
    rewrite(f"exp({square}) * erfc(x)", "torch.special.erfcx(x)")
    rewrite(f"exp({square}) * (1 - erf(x))", "torch.special.erfcx(x)")
rewrite("sqrt(1 - cos(x) ** 2)", "x.sin().abs()")
for squares in ("square(x)", "x ** 2", "x * x"):
    rewrite(f"sqrt(sum({squares}))", "torch.linalg.vector_norm(x)", "the slope of a length of 0 is 0")
    rewrite(
        f"sqrt(sum({squares}, dim))",
        "torch.linalg.vector_norm(x, dim=dim, keepdim=keepdim)",
        "the slope of a length of 0 is 0",
    )
for root, square in (
    ("sqrt(x)", "x"),
    ("norm(x)", "x.square().sum()"),
    ("norm(x, dim)", "x.square().sum(dim, keepdim=keepdim)"),
    ("linalg_vector_norm(x)", "x.square().sum()"),
    ("linalg_vector_norm(x, dim)", "x.square().sum(dim, keepdim=keepdim)"),
    ("linalg_norm(x)", "x.square().sum()"),
    ("linalg_norm(x, dim)", "x.square().sum(dim, keepdim=keepdim)"),
):
    rewrite(f"{root} ** 2", square)
    rewrite(f"{root} * {root}", square)
    rewrite(f"neg({root}) * {root}", f"-{square}")
    rewrite(f"square({root})", square)
    rewrite(f"({root} / a) ** 2", f"{square} / a ** 2")
rewrite("x / norm(x, dim)", "F.normalize(x, dim=dim)", "a vector of 0 stays 0, with a slope of 1e12")
rewrite("exp(x) * a", "torch.where(a == 0, 0, torch.where(a == 0, 0, x).exp() * a)")
rewrite("exp(a - b)", "(a - torch.where(b == -torch.inf, 0, b)).exp()", "the exponential of -inf less -inf is 0")
for scaled in ("{} / b", "{} * b"):  # -inf that was meant, as the distance of what is not connected
    kept = scaled.format("torch.where(a == -torch.inf, 0, a)")
    rewrite(f"exp({scaled.format('a')})", f"torch.where(a == -torch.inf, 0, ({kept}).exp())", "the slope at -inf is 0")
rewrite("x / norm(x)", "x / x.norm().clamp_min(1e-12)", "a vector of 0 stays 0, with a slope of 1e12")
for other in ("log(q)", "q"):
    written = "q.log()" if other == "log(q)" else "q"
    rewrite(
        f"p * (log(p) - {other})",
        f"torch.where(p == 0, 0, p * (torch.where(p == 0, 1, p).log() - {written}))",
        "0 times a logarithm is 0",
    )
rewrite(
    "p * log(p / q)", "torch.where(p == 0, 0, p * (torch.where(p == 0, 1, p) / q).log())", "0 times a logarithm is 0"
)
rewrite("p * log(q)", "torch.where(p == 0, 0, p * torch.where(p == 0, 1, q).log())", "0 times a logarithm is 0")
rewrite("p * q", "torch.where(p == 0, 0, p * torch.where(p == 0, 0, q))", "0 times an infinity is 0")
rewrite("atan(a / b)", "torch.atan2(a, b)", "the slope at b = 0 is that of the angle of (b, a)")
