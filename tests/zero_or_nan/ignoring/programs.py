"""Random programs of selections and functions, run twice: by PyTorch, and element by element on Python's floats.

The second way knows nothing of tensors. Each number remembers which numbers it was computed from, and how a derivative
goes back to each; a number that was not selected is not among them. What the loss does not lead back to is ignored.
"""

import functools
from dataclasses import dataclass, field
from math import inf, nan

import numpy as np
import torch
from hypothesis import strategies as st

SIZE = 4
NUMBERS = [0.0, -0.0, 1.0, -1.0, 0.5, 2.0, -3.0, 100.0, -800.0, 800.0, 3e38, 1e200, inf, -inf, nan]
PLAIN = [1.0, -1.0, 0.5, 2.0, -3.0, 0.25]
WEIGHTS = [1.0, -2.0, 0.5, 3.0, -0.25, 1.5, 0.75, -1.25]


@dataclass(eq=False)
class Number:
    """A float64 and the ways back from it, which are made of numbers again: a gradient has a gradient.

    `size` is what the value would be if all terms had one sign: that times the precision of a float is its error.
    """

    value: float
    back: list = field(default_factory=list)  # pairs: a number it was computed from, and what it gets of a derivative
    size: float | None = None

    def __post_init__(self):
        self.value = np.float64(self.value)
        if self.size is None:
            self.size = abs(self.value)

    def __add__(self, other):
        return plus(self, other)

    def __neg__(self):
        return Number(-self.value, [(self, lambda g: -g)], self.size)

    def __sub__(self, other):
        return plus(self, -other)

    def __mul__(self, other):
        return times(self, other)

    def __truediv__(self, other):
        return over(self, other)


def gradient(loss, leaves):
    """What each leaf gets of the loss, as a number; None where nothing leads back."""
    got = {id(loss): Number(1)}
    with np.errstate(all="ignore"):
        for number in reversed(in_order(loss)):
            for source, pull in number.back:
                part = pull(got[id(number)])
                got[id(source)] = got[id(source)] + part if id(source) in got else part
    return [got.get(id(leaf)) for leaf in leaves]


def in_order(loss):
    """All that it was computed from, each after its own sources."""
    order, seen, stack = [], set(), [(loss, False)]
    while stack:
        number, done = stack.pop()
        if done:
            order.append(number)
        elif id(number) not in seen:
            seen.add(id(number))
            stack.append((number, True))
            stack.extend((source, False) for source, _ in number.back)
    return order


def one(x, value, pull):
    """A function of one number; `pull` gets what the result gets, the number, and the result."""
    result = Number(value(x.value))
    result.back.append((x, lambda g: pull(g, x, result)))
    return result


def unary(value, pull):
    return lambda xs, _: [one(x, value, pull) for x in xs]


def cosine(x):
    return one(x, np.cos, lambda g, x, y: -g * one(x, np.sin, lambda g, x, y: g * cosine(x)))


def power(x, n):
    """As PyTorch has it, the derivative of x**0 is a computed 0."""
    return one(x, lambda v: v**n, lambda g, x, y: g * (Number(n) * power(x, n - 1)) if n else Number(0))


def times(x, y):
    return Number(x.value * y.value, [(x, lambda g: g * y), (y, lambda g: g * x)], x.size * y.size)


def over(x, y):
    return Number(x.value / y.value, [(x, lambda g: g / y), (y, lambda g: -g * ((x / y) / y))], x.size / abs(y.value))


def plus(x, y):
    return Number(x.value + y.value, [(x, lambda g: g), (y, lambda g: g)], x.size + y.size)


def larger(x, y):
    value = np.maximum(x.value, y.value)
    if x.value == y.value:
        return Number(value, [(x, lambda g: g / Number(2)), (y, lambda g: g / Number(2))])
    back = [(n, lambda g: g) for n, other in ((x, y), (y, x)) if not n.value < other.value]
    return Number(value, back)


def total(xs):
    return Number(sum(x.value for x in xs), [(x, lambda g: g) for x in xs], sum(x.size for x in xs))


def matrix(xs, ws):
    """The 2x2 matrix of xs times that of ws."""
    return [total([times(xs[2 * i + k], ws[2 * k + j]) for k in range(2)]) for i in range(2) for j in range(2)]


def constants(values):
    return [Number(value) for value in values]


def tensor(values, like):
    return torch.tensor(values, dtype=like.dtype)


def assigned(x, mask, values):
    y = x.clone()
    y[torch.tensor(mask)] = tensor(values, x)[torch.tensor(mask)]
    return y


# One operand: name -> (by PyTorch, by numbers, what its parameter is drawn from).

masks = st.lists(st.booleans(), min_size=SIZE, max_size=SIZE)
values = st.lists(st.sampled_from(NUMBERS), min_size=SIZE, max_size=SIZE)
indices = st.lists(st.integers(0, SIZE - 1), min_size=SIZE, max_size=SIZE)
nothing = st.none()

ONE = {
    "exp": (lambda x, _: x.exp(), unary(np.exp, lambda g, x, y: g * y), nothing),
    "log": (lambda x, _: x.log(), unary(np.log, lambda g, x, y: g / x), nothing),
    "sqrt": (lambda x, _: x.sqrt(), unary(np.sqrt, lambda g, x, y: g / (Number(2) * y)), nothing),
    "tanh": (lambda x, _: x.tanh(), unary(np.tanh, lambda g, x, y: g * (Number(1) - y * y)), nothing),
    "sin": (lambda x, _: x.sin(), unary(np.sin, lambda g, x, y: g * cosine(x)), nothing),
    "square": (lambda x, _: x**2, lambda xs, _: [power(x, 2) for x in xs], nothing),
    "reciprocal": (lambda x, _: x.reciprocal(), unary(lambda x: 1 / x, lambda g, x, y: -g * (y * y)), nothing),
    "neg": (lambda x, _: -x, unary(np.negative, lambda g, x, y: -g), nothing),
    "floor": (lambda x, _: x.floor(), unary(np.floor, lambda g, x, y: Number(0)), nothing),
    "times constants": (
        lambda x, c: x * tensor(c, x), lambda xs, c: [times(*p) for p in zip(xs, constants(c), strict=True)], values),
    "plus constants": (
        lambda x, c: x + tensor(c, x), lambda xs, c: [plus(*p) for p in zip(xs, constants(c), strict=True)], values),
    "matrix": (
        lambda x, c: (x.reshape(2, 2) @ tensor(c, x).reshape(2, 2)).reshape(SIZE),
        lambda xs, c: matrix(xs, constants(c)), values),
    "by a bool": (
        lambda x, m: x * torch.tensor(m), lambda xs, m: [times(*p) for p in zip(xs, constants(m), strict=True)], masks),
    "mean": (
        lambda x, _: x.mean().expand(SIZE) + 0 * tensor([0.0] * SIZE, x),
        lambda xs, _: [Number(t.value / SIZE, [(t, lambda g: g / Number(SIZE))]) for t in [total(xs)]] * SIZE, nothing),
    "cumsum": (lambda x, _: x.cumsum(0), lambda xs, _: [total(xs[: i + 1]) for i in range(SIZE)], nothing),
    # Selections.
    "relu": (lambda x, _: x.relu(), lambda xs, _: [Number(0) if x.value <= 0 else x for x in xs], nothing),
    "clamp": (
        lambda x, _: x.clamp(-2, 50),
        lambda xs, _: [clamped(x) for x in xs], nothing),
    "nan_to_num": (
        lambda x, _: x.nan_to_num(0.0, 5.0, -5.0),
        lambda xs, _: [x if np.isfinite(x.value) else Number(np.nan_to_num(x.value, True, 0.0, 5.0, -5.0)) for x in xs],
        nothing),
    "sort": (
        lambda x, _: x.sort(stable=True).values,
        lambda xs, _: sorted(xs, key=lambda x: (np.isnan(x.value), 0 if np.isnan(x.value) else x.value)), nothing),
    "index": (lambda x, i: x[torch.tensor(i)], lambda xs, i: [xs[k] for k in i], indices),
    "gather": (lambda x, i: x.gather(0, torch.tensor(i)), lambda xs, i: [xs[k] for k in i], indices),
    "masked_fill": (
        lambda x, m: x.masked_fill(torch.tensor(m), 0.5),
        lambda xs, m: [Number(0.5) if k else x for x, k in zip(xs, m, strict=True)], masks),
    "bool index": (
        lambda x, m: torch.cat([x[torch.tensor(m)], tensor([2.0] * SIZE, x)])[:SIZE],
        lambda xs, m: ([x for x, k in zip(xs, m, strict=True) if k] + constants([2.0] * SIZE))[:SIZE], masks),
    "assignment": (
        lambda x, p: assigned(x, *p),
        lambda xs, p: [Number(c) if k else x for x, k, c in zip(xs, *p, strict=True)], st.tuples(masks, values)),
    "tril": (
        lambda x, _: x.reshape(2, 2).tril().reshape(SIZE), lambda xs, _: [xs[0], Number(0), xs[2], xs[3]], nothing),
    "max": (
        lambda x, _: x.max().expand(SIZE),
        lambda xs, _: [evenly(xs)] * SIZE, nothing),
    "transpose": (lambda x, _: x.reshape(2, 2).t().reshape(SIZE), lambda xs, _: [xs[0], xs[2], xs[1], xs[3]], nothing),
}  # fmt: skip


def clamped(x):
    """NaN is handed on, by a derivative that is 0."""
    if np.isnan(x.value):
        return Number(x.value, [(x, lambda g: Number(0))])
    inside = -2 <= x.value <= 50 if _hands_on_at_a_bound() else -2 < x.value < 50
    return x if inside else Number(np.clip(x.value, -2, 50))


@functools.cache
def _hands_on_at_a_bound():
    """Whether `clamp` hands a cotangent on at a number that is the bound itself, as it did before 2.14."""
    x = torch.tensor(-2.0, requires_grad=True)
    return torch.autograd.grad(x.clamp(-2, 50), x)[0].item() == 1


def evenly(xs):
    """The largest element, or NaN; several that are it share its derivative."""
    value = np.max([x.value for x in xs])
    those = [x for x in xs if x.value == value or (np.isnan(value) and np.isnan(x.value))]
    return Number(value, [(x, lambda g: g / Number(len(those))) for x in those])


def scattered(xs, source, mask):
    return [next(source) if k else x for x, k in zip(xs, mask, strict=True)]


# Two operands.

TWO = {
    "add": (lambda x, y, _: x + y, lambda xs, ys, _: [plus(*p) for p in zip(xs, ys, strict=True)], nothing),
    "mul": (lambda x, y, _: x * y, lambda xs, ys, _: [times(*p) for p in zip(xs, ys, strict=True)], nothing),
    "div": (lambda x, y, _: x / y, lambda xs, ys, _: [over(*p) for p in zip(xs, ys, strict=True)], nothing),
    "where": (
        lambda x, y, m: torch.where(torch.tensor(m), x, y),
        lambda xs, ys, m: [x if k else y for x, y, k in zip(xs, ys, m, strict=True)], masks),
    "maximum": (
        lambda x, y, _: torch.maximum(x, y), lambda xs, ys, _: [larger(*p) for p in zip(xs, ys, strict=True)], nothing),
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
        lambda xs, m: total([x if k else Number(0) for x, k in zip(xs, m, strict=True)]), masks),
    "sum of some": (
        lambda x, m: x[torch.tensor(m)].sum(),
        lambda xs, m: total([x for x, k in zip(xs, m, strict=True) if k] or [Number(0)]), masks),
    "nansum": (
        lambda x, _: x.nansum(), lambda xs, _: total([x for x in xs if not np.isnan(x.value)] or [Number(0)]), nothing),
    "finite ones": (
        lambda x, _: torch.where(x.isfinite(), x, 0.0).sum(),
        lambda xs, _: total([x for x in xs if np.isfinite(x.value)] or [Number(0)]), nothing),
    "dot": (
        lambda x, c: x @ tensor(c, x),
        lambda xs, c: total([times(x, n) for x, n in zip(xs, constants(c), strict=True)]),
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

    def by_numbers(self):
        """The gradient of each element of the leaves, None where it is ignored."""
        return [[None if number is None else number.value for number in leaf] for leaf in self.numbers(1)]

    def numbers(self, order):
        """The same as numbers.

        Of a higher order: that of the weighted sum of the gradient before, in which what is ignored has no part.
        """
        leaves = [constants(values) for values in self.leaves]
        results = list(leaves)
        with np.errstate(all="ignore"):
            for name, operands, parameter in self.steps:
                function = (ONE if len(operands) == 1 else TWO)[name][1]
                results.append(function(*(results[k] for k in operands), parameter))
            name, parameter = self.last
            loss = LAST[name][1](results[-1], parameter)
        every = leaves[0] + leaves[1]
        with np.errstate(all="ignore"):
            for _ in range(order - 1):
                parts = zip(WEIGHTS, gradient(loss, every), strict=True)
                loss = total([Number(w) * g for w, g in parts if g is not None] or [Number(0)])
            found = gradient(loss, every)
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
