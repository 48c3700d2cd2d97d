"""PyTorch's own losses and distributions, as `explain.probe` searches them, and what PyTorch's tracker says of each."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, distributions


def searchable(name: str) -> tuple[Callable[..., Tensor], list[Tensor]]:
    """A loss as a function of its inputs, with an example of them."""
    used = {node.id for node in ast.walk(ast.parse(LOSSES[name])) if isinstance(node, ast.Name)}
    chosen = {each: tensor for each, tensor in inputs().items() if each in used}
    names: dict[str, Any] = {"torch": torch, "F": F, **vars(distributions)}
    return eval(f"lambda {', '.join(chosen)}: ({LOSSES[name]}).mean()", names), [*chosen.values()]


def inputs() -> dict[str, Tensor]:
    """An example of each input, by the name by which `LOSSES` calls it. Those of a model require a gradient."""
    model = Tensor.requires_grad_
    return {
        "x": model(torch.randn(6)),
        "z": model(torch.randn(6)),
        "y": torch.randn(6),
        "a": model(torch.randn(4, 3)),
        "b": model(torch.randn(4, 3)),
        "c": model(torch.randn(4, 3)),
        "p": model(torch.rand(6)),
        "r": model(torch.rand(6)),
        "q": torch.rand(6),
        "s": model(torch.rand(6) + 0.5),
        "t": model(torch.rand(6) + 0.5),
        "u": model(torch.rand(6) + 0.5),
        "w": torch.rand(6) + 1.0,
        "rows": model(torch.rand(4, 3) + 0.5),
        "logp": model(torch.randn(4, 3).log_softmax(1)),
        "logq": torch.randn(4, 3).log_softmax(1),
        "d": torch.rand(4, 3).softmax(1),
        "binary": torch.tensor([0.0, 1, 1, 0, 1, 0]),
        "sign": torch.tensor([-1.0, 1, 1, -1, 1, -1]),
        "pairs": torch.tensor([1.0, -1, 1, -1]),
        "count": torch.tensor([0.0, 2, 1, 5, 3, 1]),
        "label": torch.tensor([0, 2, 1, 2]),
        "padded": torch.tensor([0, -100, 1, 2]),
        "speech": model(torch.randn(8, 2, 5)),
        "letters": torch.tensor([[1, 2, 3], [2, 3, 4]]),
        "sets": torch.tensor([[0, 2, -1], [1, -1, -1], [2, 0, 1], [-1, -1, -1]]),
    }


_DISTRIBUTIONS = {
    "Normal(x, s)": ("Normal(z, t)", "y"),
    "LogNormal(x, s)": ("LogNormal(z, t)", "w"),
    "Laplace(x, s)": ("Laplace(z, t)", "y"),
    "Cauchy(x, s)": ("Cauchy(z, t)", "y"),
    "Gumbel(x, s)": ("Gumbel(z, t)", "y"),
    "StudentT(u, x, s)": ("", "y"),
    "VonMises(x, s)": ("", "y"),
    "Exponential(s)": ("Exponential(t)", "w"),
    "Gamma(s, u)": ("Gamma(t, w)", "w"),
    "InverseGamma(s, u)": ("InverseGamma(t, w)", "w"),
    "Chi2(s)": ("Chi2(t)", "w"),
    "HalfNormal(s)": ("HalfNormal(t)", "w"),
    "HalfCauchy(s)": ("", "w"),
    "Weibull(s, u)": ("", "w"),
    "Pareto(s, u)": ("Pareto(t, w)", "w + u"),
    "FisherSnedecor(s, u)": ("", "w"),
    "Beta(s, u)": ("Beta(t, w)", "q"),
    "Kumaraswamy(s, u)": ("", "q"),
    "Dirichlet(rows)": ("Dirichlet(rows + 1)", "d"),
    "Poisson(s)": ("Poisson(t)", "count"),
    "Bernoulli(logits=x)": ("Bernoulli(logits=z)", "binary"),
    "Bernoulli(p)": ("Bernoulli(r)", "binary"),
    "ContinuousBernoulli(logits=x)": ("ContinuousBernoulli(logits=z)", "q"),
    "ContinuousBernoulli(p)": ("ContinuousBernoulli(r)", "q"),
    "Categorical(logits=a)": ("Categorical(logits=b)", "label"),
    "Geometric(logits=x)": ("Geometric(logits=z)", "count"),
    "Geometric(p)": ("Geometric(r)", "count"),
    "Binomial(5, logits=x)": ("Binomial(5, logits=z)", "count"),
    "Binomial(5, p)": ("Binomial(5, r)", "count"),
    "NegativeBinomial(5, logits=x)": ("", "count"),
    "MultivariateNormal(a, torch.diag_embed(rows))": ("MultivariateNormal(b, torch.diag_embed(rows + 1))", "c"),
    "RelaxedBernoulli(torch.tensor(0.5), logits=x)": ("", "q"),
    "RelaxedOneHotCategorical(torch.tensor(0.5), logits=a)": ("", "d"),
    "GeneralizedPareto(x, s, u)": ("", "w + x"),
    "Uniform(x, x + s)": ("Uniform(x - t, x + s + t)", "x + q * s"),
    "Independent(Normal(a, rows), 1)": ("Independent(Normal(b, rows + 1), 1)", "c"),
    "LowRankMultivariateNormal(a, b[..., None], rows)": ("LowRankMultivariateNormal(b, a[..., None], rows + 1)", "c"),
    "MixtureSameFamily(Categorical(logits=a), Normal(b, rows))": ("", "c[:, 0]"),
    "TransformedDistribution(Normal(x, s), [TanhTransform()])": ("", "q * 2 - 1"),
    "LKJCholesky(3, s[:4])": ("", "F.normalize(torch.eye(3) + d[..., None].expand(4, 3, 3).tril(-1), dim=-1)"),
    "Wishart(s[:4] + 2, torch.diag_embed(rows))": (
        "Wishart(t[:4] + 2, torch.diag_embed(rows + 1))",
        "torch.diag_embed(d)",
    ),
}
"""By distribution: another one of the same kind, and a value that it may have."""

_NO_ENTROPY = (
    *("VonMises", "Poisson", "FisherSnedecor", "NegativeBinomial", "Binomial", "Relaxed"),
    *("LKJCholesky", "MixtureSameFamily", "TransformedDistribution"),
)


def _of_distributions() -> dict[str, str]:
    """The losses that are made of distributions."""
    found = {}
    for code, (other, value) in _DISTRIBUTIONS.items():
        name = code.partition("(")[0]
        if not hasattr(distributions, name):  # older releases lack GeneralizedPareto
            continue
        found[f"{code}.log_prob"] = f"{code}.log_prob({value})"
        if not name.startswith(_NO_ENTROPY):
            found[f"{code}.entropy"] = f"{code}.entropy()"
        if getattr(distributions, name).has_rsample:
            found[f"{code}.rsample"] = f"{code}.rsample()"
        if other:
            found[f"{code}.kl_divergence"] = f"kl_divergence({code}, {other})"
    return found


LOSSES = {
    each: f"F.{each}"
    for each in (
        "binary_cross_entropy(p, binary)",
        "binary_cross_entropy_with_logits(x, binary)",
        "cosine_embedding_loss(a, b, pairs)",
        "cosine_similarity(a, b)",
        "cross_entropy(a, label)",
        "cross_entropy(a, label, label_smoothing=0.1)",
        "cross_entropy(a, padded)",
        "cross_entropy(a, d)",
        "ctc_loss(speech.log_softmax(2), letters, (8, 7), (3, 2))",
        "gaussian_nll_loss(x, y, s)",
        "hinge_embedding_loss(x, sign)",
        "huber_loss(x, y)",
        "kl_div(logp, d, reduction='batchmean')",
        "kl_div(logp, logq, reduction='batchmean', log_target=True)",
        "l1_loss(x, y)",
        "linear_cross_entropy(a, b, label)",
        "margin_ranking_loss(x, z, sign)",
        "mse_loss(x, y)",
        "multi_margin_loss(a, label)",
        "multilabel_margin_loss(a, sets)",
        "multilabel_soft_margin_loss(x, binary)",
        "nll_loss(logp, label)",
        "pairwise_distance(a, b)",
        "poisson_nll_loss(x, count, full=True)",
        "poisson_nll_loss(p, count, log_input=False)",
        "smooth_l1_loss(x, y)",
        "soft_margin_loss(x, sign)",
        "triplet_margin_loss(a, b, c)",
        "triplet_margin_with_distance_loss(a, b, c)",
    )
    if hasattr(F, each.partition("(")[0])  # older releases lack linear_cross_entropy
} | _of_distributions()
"""The code of each loss, by name."""
