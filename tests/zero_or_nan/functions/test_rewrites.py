"""Each rewrite computes what its pattern does, in value and gradient, and is finite where it chooses a number."""

import ast

import pytest
import torch
import torch.nn.functional as F

from zero_or_nan.functions.rewrites import REWRITES, function_in, operands_in, rewrite

EVERY = [each for rewrites in REWRITES.values() for each in rewrites]
ELEMENTWISE = """
    abs acos acosh asin atan atanh cos cosh erf erfc exp expm1 log log10 log1p log2 logit neg rsqrt sigmoid sinc softmax
    sqrt square tanh xlogy
"""
CALLED = {name: getattr(torch, name) for name in ELEMENTWISE.split()} | {"ndtr": torch.special.ndtr}
CALLED |= {name: getattr(F, name) for name in "cross_entropy ctc_loss kl_div nll_loss normalize".split()}
CALLED |= {name: getattr(torch, name) for name in "cumsum gather matmul std var".split()}


def reduced(name):
    """A reduction that keeps the dimension."""
    of = getattr(torch, name)
    return lambda x, dim=None: of(x) if dim is None else of(x, dim, keepdim=True)


CALLED |= {name: reduced(name) for name in "logsumexp mean prod sum".split()}
CALLED |= {
    "getitem": lambda x, i: x[i],
    "det": torch.det,
    "logaddexp": torch.logaddexp,
    "poisson_nll_loss": F.poisson_nll_loss,
    "to": torch.Tensor.to,
    "norm": lambda x, dim=None: x.norm(dim=dim, keepdim=dim is not None),
    "linalg_norm": lambda x, dim=None: torch.linalg.norm(x, dim=dim, keepdim=dim is not None),
    "linalg_vector_norm": lambda x, dim=None: torch.linalg.vector_norm(x, dim=dim, keepdim=dim is not None),
}


def text(each):
    return ast.unparse(each.pattern)


def outcome(code, names, values):
    """The value of an expression, and its gradient by each tensor."""
    leaves = {name: value.clone().requires_grad_() for name, value in values.items()}
    result = eval(code, {"torch": torch, "F": F, **CALLED}, {**names, **leaves})
    weights = torch.linspace(1, 2, result.numel(), dtype=result.dtype).reshape(result.shape)
    gradients = torch.autograd.grad(result, list(leaves.values()), weights, allow_unused=True, materialize_grads=True)
    return [result.detach(), *gradients]


@pytest.mark.parametrize("each", EVERY, ids=lambda each: f"{text(each)} by {each.code}")
def test_it_computes_the_same(each):
    generator = torch.Generator().manual_seed(len(each.code))
    used = {node.id for node in ast.walk(each.pattern) if isinstance(node, ast.Name)} - set(CALLED)
    names = {"dim": -1, "keepdim": True, "p": 3.0 if "**" in text(each) else None, "r": "sum", "i": -100}
    names |= {"d": torch.float64 if "to(" in text(each) else 1, "f": False, "s": 0.2}
    names["target"], names["targets"] = torch.tensor([0, 2, 1]), torch.tensor([[1], [2], [1]])
    if "gather" in text(each) or "getitem" in text(each):
        names["i"] = names["targets"]
    names["n"] = names["m"] = torch.ones(3, dtype=torch.long)
    if " or " in each.code:
        names["b"] = 0.5  # a number
    if "poisson" in text(each):
        del names["target"]
    tensors = [name for name in sorted(used) if name not in names or name == "p" and "**" not in text(each)]
    values = {name: torch.rand(3, 3, generator=generator, dtype=torch.float64) * 0.8 + 0.1 for name in tensors}
    pattern = text(each)
    if "1 - exp" in pattern:
        values["x"].neg_()
    if "acosh" in pattern:
        values["x"] += 1
    if "ctc" in pattern:
        values["x"] = values["x"][None].log_softmax(-1)
    for by_pattern, by_code in zip(outcome(pattern, names, values), outcome(each.code, names, values), strict=True):
        torch.testing.assert_close(by_code, by_pattern)


AT_ITS_POINT = {
    "log(x)": [0.0, 2.0], "log2(x)": [0.0, 2.0], "log10(x)": [0.0, 2.0], "log1p(x)": [-1.0, 2.0],
    "sqrt(x)": [0.0, 2.0], "rsqrt(x)": [0.0, 2.0], "acos(x)": [1.0, -1.0], "asin(x)": [1.0, -1.0],
    "atanh(x)": [1.0, 0.5], "logit(x)": [0.0, 1.0], "exp(x)": [1e3, 1.0],
}  # fmt: skip


@pytest.mark.parametrize(
    "each", [each for each in EVERY if text(each) in AT_ITS_POINT and not each.of_rounding], ids=text
)
def test_where_it_chooses_it_is_finite(each):
    x = torch.tensor(AT_ITS_POINT[text(each)], dtype=torch.float64)
    assert each.choice
    assert not all(part.isfinite().all() for part in outcome(text(each), {}, {"x": x}))
    assert all(part.isfinite().all() for part in outcome(each.code, {}, {"x": x}))


SERIES = {"sinc(x)": [0.01, -0.029], "acos(x) ** 2": [0.9991, 0.99999], "acosh(x) ** 2": [1.0009, 1.00001]}


@pytest.mark.parametrize("each", [each for each in EVERY if text(each) in SERIES], ids=text)
def test_a_series_is_near_enough_for_float32(each):
    x = torch.tensor(SERIES[text(each)], dtype=torch.float64)
    by_pattern, by_code = (outcome(code, {}, {"x": x}) for code in (text(each), each.code))
    torch.testing.assert_close(by_code, by_pattern, rtol=1e-6, atol=0)


def test_a_pattern_is_read_from_outside():
    parsed = ast.parse("log(1 - sigmoid(x))", mode="eval").body
    assert function_in(parsed) == "log"
    (inner,) = operands_in(parsed)
    assert function_in(inner) == "sub" and [ast.unparse(part) for part in operands_in(inner)] == ["1", "sigmoid(x)"]
    with pytest.raises(ValueError, match="^x calls no function"):
        rewrite("x", "x")
