"""Random programs of selections and functions, run twice by PyTorch: on tensors, and element by element.

The second way knows nothing of masks. Each element is a tensor of its own, without dimensions. An element that was not
selected is not in the graph of the loss, so plain PyTorch's gradient has None for it: it is ignored.
"""

import functools
from dataclasses import dataclass
from math import inf, nan

import torch
from hypothesis import strategies as st

SIZE = 4
NUMBERS = [0.0, -0.0, 1.0, -1.0, 0.5, 2.0, -3.0, 100.0, -800.0, 800.0, 3e38, 1e200, inf, -inf, nan]
PLAIN = [1.0, -1.0, 0.5, 2.0, -3.0, 0.25]
WEIGHTS = [1.0, -2.0, 0.5, 3.0, -0.25, 1.5, 0.75, -1.25]


def number(value):
    """A number that nothing leads back from."""
    return torch.tensor(value, dtype=torch.float64)


def total(xs):
    """The sum of some elements. A sum of none is a number."""
    return sum(xs[1:], xs[0]) if xs else number(0.0)


def matrix(xs, ws):
    """The 2x2 matrix of xs times that of ws."""
    return [total([xs[2 * i + k] * ws[2 * k + j] for k in range(2)]) for i in range(2) for j in range(2)]


def paired(function):
    """A function of pairs of elements."""
    return lambda xs, ys, *_: [function(*pair) for pair in zip(xs, ys, strict=True)]


def tensor(values, like):
    return torch.tensor(values, dtype=like.dtype)


def assigned(x, mask, values):
    y = x.clone()
    y[torch.tensor(mask)] = tensor(values, x)[torch.tensor(mask)]
    return y


# One operand: name -> (of a tensor, of elements, what its parameter is drawn from).

masks = st.lists(st.booleans(), min_size=SIZE, max_size=SIZE)
values = st.lists(st.sampled_from(NUMBERS), min_size=SIZE, max_size=SIZE)
indices = st.lists(st.integers(0, SIZE - 1), min_size=SIZE, max_size=SIZE)
nothing = st.none()


def elementwise(function):
    return lambda x, _: function(x), lambda xs, _: [function(x) for x in xs], nothing


ONE = {
    **{f.__name__: elementwise(f) for f in (torch.exp, torch.log, torch.sqrt, torch.tanh, torch.sin)},
    **{f.__name__: elementwise(f) for f in (torch.reciprocal, torch.neg, torch.floor)},
    "square": elementwise(lambda x: x**2),
    "times constants": (lambda x, c: x * tensor(c, x), paired(lambda x, c: x * c), values),
    "plus constants": (lambda x, c: x + tensor(c, x), paired(lambda x, c: x + c), values),
    "matrix": (lambda x, c: (x.reshape(2, 2) @ tensor(c, x).reshape(2, 2)).reshape(SIZE), matrix, values),
    "by a bool": (lambda x, m: x * torch.tensor(m), paired(lambda x, k: x * k), masks),
    "mean": (
        lambda x, _: x.mean().expand(SIZE) + 0 * tensor([0.0] * SIZE, x),
        lambda xs, _: [total(xs) / SIZE] * SIZE, nothing),
    "cumsum": (lambda x, _: x.cumsum(0), lambda xs, _: [total(xs[: i + 1]) for i in range(SIZE)], nothing),
    # Selections.
    "relu": (lambda x, _: x.relu(), lambda xs, _: [number(0.0) if x <= 0 else x for x in xs], nothing),
    "clamp": (lambda x, _: x.clamp(-2, 50), lambda xs, _: [clamped(x) for x in xs], nothing),
    "nan_to_num": (
        lambda x, _: x.nan_to_num(0.0, 5.0, -5.0),
        lambda xs, _: [x if x.isfinite() else x.detach().nan_to_num(0.0, 5.0, -5.0) for x in xs], nothing),
    "sort": (
        lambda x, _: x.sort(stable=True).values,
        lambda xs, _: sorted(xs, key=lambda x: (x.isnan().item(), 0 if x.isnan() else x.item())), nothing),
    "index": (lambda x, i: x[torch.tensor(i)], lambda xs, i: [xs[k] for k in i], indices),
    "gather": (lambda x, i: x.gather(0, torch.tensor(i)), lambda xs, i: [xs[k] for k in i], indices),
    "masked_fill": (
        lambda x, m: x.masked_fill(torch.tensor(m), 0.5), paired(lambda x, k: number(0.5) if k else x), masks),
    "bool index": (
        lambda x, m: torch.cat([x[torch.tensor(m)], tensor([2.0] * SIZE, x)])[:SIZE],
        lambda xs, m: ([x for x, k in zip(xs, m, strict=True) if k] + [number(2.0)] * SIZE)[:SIZE], masks),
    "assignment": (
        lambda x, p: assigned(x, *p),
        lambda xs, p: [number(c) if k else x for x, k, c in zip(xs, *p, strict=True)], st.tuples(masks, values)),
    "tril": (
        lambda x, _: x.reshape(2, 2).tril().reshape(SIZE),
        lambda xs, _: [xs[0], number(0.0), xs[2], xs[3]], nothing),
    "max": (lambda x, _: x.max().expand(SIZE), lambda xs, _: [evenly(xs)] * SIZE, nothing),
    "transpose": (lambda x, _: x.reshape(2, 2).t().reshape(SIZE), lambda xs, _: [xs[0], xs[2], xs[1], xs[3]], nothing),
}  # fmt: skip


def clamped(x):
    """NaN is handed on, by a derivative that is 0."""
    inside = -2 <= x <= 50 if _hands_on_at_a_bound() else -2 < x < 50
    return x if inside else x.clamp(-2, 50) if x.isnan() else x.detach().clamp(-2, 50)


@functools.cache
def _hands_on_at_a_bound():
    """Whether `clamp` hands a cotangent on at a number that is the bound itself, as it did before 2.14."""
    x = torch.tensor(-2.0, requires_grad=True)
    return torch.autograd.grad(x.clamp(-2, 50), x)[0].item() == 1


def evenly(xs):
    """The largest element, or NaN; several that are it share its derivative."""
    found = [x for x in xs if x.isnan()] or [x for x in xs if x == max(xs)]
    return total(found) / len(found)


def larger(x, y):
    """The larger element alone. Two that are equal share the derivative, and beside NaN each gets it."""
    return y if x < y else x if y < x else torch.maximum(x, y)


def scattered(xs, source, mask):
    return [next(source) if k else x for x, k in zip(xs, mask, strict=True)]


# Two operands.

TWO = {
    "add": (lambda x, y, _: x + y, paired(lambda x, y: x + y), nothing),
    "mul": (lambda x, y, _: x * y, paired(lambda x, y: x * y), nothing),
    "div": (lambda x, y, _: x / y, paired(lambda x, y: x / y), nothing),
    "where": (
        lambda x, y, m: torch.where(torch.tensor(m), x, y),
        lambda xs, ys, m: [x if k else y for x, y, k in zip(xs, ys, m, strict=True)], masks),
    "maximum": (lambda x, y, _: torch.maximum(x, y), paired(larger), nothing),
    "masked_scatter": (
        lambda x, y, m: x.masked_scatter(torch.tensor(m), y),
        lambda xs, ys, m: scattered(xs, iter(ys), m), masks),
    "cat": (lambda x, y, _: torch.cat([x[:2], y[2:]]), lambda xs, ys, _: xs[:2] + ys[2:], nothing),
    "matmul": (
        lambda x, y, _: (x.reshape(2, 2) @ y.reshape(2, 2)).reshape(SIZE), lambda xs, ys, _: matrix(xs, ys), nothing),
}  # fmt: skip

# The loss: a number.

LAST = {
    "sum": (lambda x, _: x.sum(), lambda xs, _: total(xs), nothing),
    "masked sum": (
        lambda x, m: torch.where(torch.tensor(m), x, 0.0).sum(),
        lambda xs, m: total([x for x, k in zip(xs, m, strict=True) if k]), masks),
    "sum of some": (
        lambda x, m: x[torch.tensor(m)].sum(),
        lambda xs, m: total([x for x, k in zip(xs, m, strict=True) if k]), masks),
    "nansum": (lambda x, _: x.nansum(), lambda xs, _: total([x for x in xs if not x.isnan()]), nothing),
    "finite ones": (
        lambda x, _: torch.where(x.isfinite(), x, 0.0).sum(),
        lambda xs, _: total([x for x in xs if x.isfinite()]), nothing),
    "dot": (
        lambda x, c: x @ tensor(c, x), lambda xs, c: total([x * n for x, n in zip(xs, c, strict=True)]),
        st.lists(st.sampled_from(PLAIN), min_size=SIZE, max_size=SIZE)),
}  # fmt: skip


@dataclass
class Program:
    """Steps, each on results of earlier ones; result 0 and 1 are the leaves."""

    leaves: list
    steps: list
    last: tuple

    def by_pytorch(self, dtype=torch.float64):
        leaves = [torch.tensor(values, dtype=dtype, requires_grad=True) for values in self.leaves]
        results = list(leaves)
        for name, operands, parameter in self.steps:
            function = (ONE if len(operands) == 1 else TWO)[name][0]
            results.append(function(*(results[k] for k in operands), parameter))
        name, parameter = self.last
        return leaves, LAST[name][0](results[-1], parameter)

    def by_elements(self, order=1):
        """The gradient of each element of the leaves, None where it is ignored.

        Of a higher order: that of the weighted sum of the gradient before, in which what is ignored has no part.
        """
        every = [number(value).requires_grad_() for values in self.leaves for value in values]
        results = [every[:SIZE], every[SIZE:]]
        for name, operands, parameter in self.steps:
            function = (ONE if len(operands) == 1 else TWO)[name][1]
            results.append(function(*(results[k] for k in operands), parameter))
        name, parameter = self.last
        loss = LAST[name][1](results[-1], parameter)
        found = [None] * (2 * SIZE)
        for _ in range(order):
            if not loss.requires_grad:
                return [[None] * SIZE] * 2
            found = torch.autograd.grad(loss, every, create_graph=True, allow_unused=True)
            loss = total([w * g for w, g in zip(WEIGHTS, found, strict=True) if g is not None])
        found = [None if g is None else g.item() for g in found]
        return [found[:SIZE], found[SIZE:]]


@st.composite
def programs(draw):
    leaves = [draw(values) for _ in range(2)]
    steps = []
    for number in range(draw(st.integers(1, 7))):
        one = draw(st.integers(0, 3)) > 0
        name = draw(st.sampled_from(sorted(ONE if one else TWO)))
        # The newest result is always used, so that nothing is computed in vain.
        operands = [number + 1] if one else [number + 1, draw(st.integers(0, number + 1))]
        steps.append((name, operands, draw((ONE if one else TWO)[name][2])))
    name = draw(st.sampled_from(sorted(LAST)))
    return Program(leaves, steps, (name, draw(LAST[name][2])))
