"""The numerics of each function agree with PyTorch: its names, and each fact that a computation can show."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from zero_or_nan.functions.graph import NODES
from zero_or_nan.functions.numerics import NUMERICS, is_elementwise, numerics, numerics_of, numerics_of_node

PLACES = (torch, Tensor, F, torch.linalg, torch.special, torch.ops.aten)
NO_ATTRIBUTES = {"getitem", "setitem", "__get__", "__set__"}
"""Operators of Python without their underscores, and what reads an attribute such as `x.grad`."""

FIRST_NAMES = {known: name for name, known in reversed(NUMERICS.items())}
EVERY = list(dict.fromkeys(NUMERICS.values()))
LIMITED = [known for known in EVERY if known.domain != (-math.inf, math.inf)]
STEP = 1e-3
ones = torch.ones


def each(records):
    return pytest.mark.parametrize("known", records, ids=FIRST_NAMES.get)


def having(fact):
    return each([known for known in EVERY if getattr(known, fact)])


def value(known, *operands, **options):
    """What a function gives for numbers, in float64."""
    operator = getattr(torch.ops.aten, FIRST_NAMES[known])
    return operator(*(torch.tensor(operand, dtype=torch.float64) for operand in operands), **options).item()


def gradient(function, *numbers):
    """The gradient of the sum of a function's values."""
    x = torch.tensor(numbers, dtype=torch.float64, requires_grad=True)
    function(x).sum().backward()
    return x.grad.tolist()


def test_pytorch_has_a_function_of_each_name():
    def is_known(name):
        return any(hasattr(place, variant) for variant in (name, f"{name}_") for place in PLACES)

    assert [name for name in NUMERICS if name not in NO_ATTRIBUTES and not is_known(name)] == []


def test_a_function_has_one_record_by_all_of_its_names():
    assert numerics_of("__rtruediv__") is numerics_of("div") is numerics_of("true_divide")
    assert numerics_of("rsub").name == "sub"
    with pytest.raises(ValueError, match="^divide has numerics already"):
        numerics("divide")


def test_a_node_has_the_numerics_of_its_function():
    x = ones(2, requires_grad=True)
    assert numerics_of_node(torch.log1p(x).grad_fn) is numerics_of("log1p")
    assert numerics_of_node(x.masked_fill(x > 1, 0).grad_fn) is numerics_of("masked_fill")
    assert numerics_of_node(F.logsigmoid(x).grad_fn) is numerics_of("log_sigmoid")
    assert numerics_of_node(x.new_tensor(0.5).mul(x.xlogy(x)).grad_fn.next_functions[1][0]).name == "xlogy"
    letters = {node.lower() for node in NODES}
    read_from_nodes = [known.name for known in EVERY if known.kinks or known.of_equals or known.inverse]
    assert [name for name in read_from_nodes if name.replace("_", "") not in letters] == []


@each(LIMITED)
def test_a_value_is_nan_outside_of_the_domain_and_only_there(known):
    least, most = known.domain
    for end, outside in ((least, least - STEP), (most, most + STEP)):
        assert math.isinf(end) or math.isnan(value(known, outside)) and not math.isnan(value(known, end))


@each(LIMITED)
def test_a_slope_is_infinite_where_it_is_steep_and_finite_beside_it(known):
    slope = getattr(torch.ops.aten, known.name)
    for point in known.steep_at:
        assert not math.isfinite(*gradient(slope, point))
        beside = [x for x in (point - STEP, point + STEP) if known.domain[0] <= x <= known.domain[1]]
        assert beside and all(math.isfinite(*gradient(slope, x)) for x in beside)


@having("pole")
def test_the_value_is_no_number_at_a_pole_alone(known):
    before, after = {"div": ([1.0], []), "addcdiv": ([1.0, 1.0], []), "pow": ([], [-1.0])}.get(known.name, ([], []))
    for x in (0.0, 0.5, 2.0):
        operands = [*before, x, *after]
        assert known.pole(*operands) == (x == 0) == (not math.isfinite(value(known, *operands)))


def test_a_power_has_no_pole_if_its_exponent_is_positive_and_whole():
    x = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    exponents = [2.0, 1.0, 0.5, -1.0]
    (x ** torch.tensor(exponents)).sum().backward()
    found = [numerics_of("pow").divisor([None, exponent]) is None for exponent in exponents]
    assert found == x.grad.isfinite().tolist() == [True, True, False, False]


UNDIRECTED = {
    "atan2": lambda x: torch.atan2(x[0], x[1]),
    "cdist": lambda x: torch.cdist(x[None], torch.zeros(1, 3, dtype=x.dtype)),
    "cosine_similarity": lambda x: F.cosine_similarity(x, torch.ones_like(x), dim=0),
    "normalize": lambda x: F.normalize(x, dim=0)[0],
    "pdist": lambda x: F.pdist(torch.stack([x, torch.zeros_like(x)])),
    "linalg_norm": torch.linalg.norm,
    "linalg_vector_norm": torch.linalg.vector_norm,
    "norm": torch.norm,
    "std": torch.std,
}


@having("no_direction")
def test_the_slope_at_0_depends_on_the_direction(known):
    function, step = UNDIRECTED[known.name], torch.tensor([0.3, 0.5, -0.2], dtype=torch.float64) * STEP
    forward, back = (function(way * step) - function(0 * step) for way in (1, -1))
    assert abs(float(forward + back)) > 0.1 * STEP or abs(float(forward)) > 0.1


@having("inverse")
def test_the_inverse_gives_the_argument(known):
    assert known.inverse(value(known, 0.3)) == pytest.approx(0.3)


@having("exact")
def test_the_exact_function_computes_the_same(known):
    operands = [-0.3] if known.name in ("abs", "neg", "reciprocal", "relu") else [0.3, 0.7]
    assert known.exact(*operands) == pytest.approx(value(known, *operands))


@having("written")
def test_a_call_is_written_as_it_is_computed(known):
    if known.name == "_softmax_backward_data":
        return  # the text has one of its two terms
    count = {"addcmul": 3, "addcdiv": 3, "square": 1, "reciprocal": 1, "rsqrt": 1, "_to_copy": 1}.get(known.name, 2)
    operands = [2.0, 3.0, 5.0][:count]

    def computed(pattern, *numbers):
        return eval(pattern.format(*numbers).replace("×", "*").replace("−", "-"), {"sqrt": math.sqrt})

    assert computed(known.written, *operands) == pytest.approx(value(known, *operands))
    if known.written_scaled:
        scale = "value" if count == 3 else "alpha"
        assert computed(known.written_scaled, *operands, 7.0) == pytest.approx(value(known, *operands, **{scale: 7.0}))


OF_MATRICES = {
    "_to_copy": lambda a, b: (a.double() * a.double().abs()).float(),
    "addcmul": lambda a, b: torch.addcmul(a, a, b),
    "addmm": lambda a, b: torch.addmm(a, a, b),
    "baddbmm": lambda a, b: torch.baddbmm(a[None], a[None], b[None]),
    "bmm": lambda a, b: torch.bmm(a[None], b[None]),
    "convolution": lambda a, b: F.conv2d(a[None, None], b[None, None]),
    "copy": lambda a, b: torch.empty_like(a).copy_(a.double() * a.double().abs()),
    "cumprod": lambda a, b: a.cumprod(0),
    "cumsum": lambda a, b: a.cumsum(0),
    "dot": lambda a, b: a[0].dot(b[0]),
    "linalg_norm": lambda a, b: torch.linalg.norm(a, 1),
    "linalg_vector_norm": lambda a, b: torch.linalg.vector_norm(a, 3),
    "linear": F.linear,
    "mean": lambda a, b: (4 * a).mean(),
    "mkldnn_convolution": lambda a, b: F.conv2d(a[None, None], b[None, None]),
    "mv": lambda a, b: a @ b[0],
    "mvlgamma": lambda a, b: torch.mvlgamma(a + 2, 1),
    "norm": lambda a, b: a.norm(3),
    **{name: getattr(torch, name) for name in ("add", "div", "mm", "mul", "rsub", "sub")},
}
"""How to call functions of two matrices, or of one in an unusual way."""


def of_matrices(known, a, b):
    name = FIRST_NAMES[known]
    return OF_MATRICES[name](a, b) if name in OF_MATRICES else getattr(torch, name)(a)


@having("grows")
def test_what_grows_is_infinite_only_if_it_is_too_large(known):
    small, large = torch.tensor([[0.5, -1.0], [0.0, 2.0]]), torch.full((2, 2), 3e38)
    assert of_matrices(known, small, small).isfinite().all()
    if known.name != "tan":  # near its poles, which no number is at
        opposite = -large if known.name in ("sub", "rsub") else large
        assert not of_matrices(known, large, opposite).isfinite().all()


@having("keeps_zero")
def test_a_zero_stays_zero(known):
    assert not of_matrices(known, torch.zeros(2, 2), ones(2, 2)).any()


KINKS = {
    "relu": F.relu,
    "threshold": lambda x: F.threshold(x, 2.0, 0.0),
    "hardtanh": lambda x: F.hardtanh(x, -1.0, 2.0),
    "hardsigmoid": lambda x: 6 * F.hardsigmoid(x),
    "clamp": lambda x: x.clamp(-1.0, 2.0),
    "clamp_min": lambda x: x.clamp_min(2.0),
    "clamp_max": lambda x: x.clamp_max(2.0),
}


@having("kinks")
def test_the_slope_at_a_kink_is_the_convention(known):
    function = KINKS[known.name]
    points = known.kinks(function(ones(1, requires_grad=True)).grad_fn)
    for point in points:
        at, *beside = gradient(function, point, point - STEP, point + STEP)
        assert at == known.uses_kinks and sorted(beside) == pytest.approx([0.0, 1.0])


ELEMENTWISE = """
abs acos asin asinh atan atanh cos cosh digamma erf erfc erfinv exp exp2 expm1 frac lgamma log log10 log1p log2 neg
reciprocal round rsqrt sigmoid sign sin sinc sinh sqrt tan tanh trunc celu elu gelu hardshrink hardsigmoid hardswish
hardtanh leaky_relu logsigmoid mish relu relu6 selu silu softplus softshrink logit
""".split()
MIXING = "softmax log_softmax cumsum cumprod logcumsumexp".split()


EQUALS = {
    "max 0": lambda x: x.max(0)[0],
    "max 1": lambda x: x.max(),
    "min 0": lambda x: x.min(0)[0],
    "min 1": lambda x: x.min(),
    "amax 0": lambda x: x.amax(),
    "amin 0": lambda x: x.amin(),
    "median 0": lambda x: x.median(),
    "nanmedian 0": lambda x: x.nanmedian(),
    "sort 0": lambda x: x.sort()[0][:1],
    "topk 0": lambda x: x.topk(1)[0],
    "kthvalue 0": lambda x: x.kthvalue(1)[0],
    "mode 0": lambda x: x.mode()[0],
    "maximum 0": lambda x: torch.maximum(x[0], x[1]),
    "minimum 0": lambda x: torch.minimum(x[0], x[1]),
    "fmax 0": lambda x: torch.fmax(x[0], x[1]),
    "fmin 0": lambda x: torch.fmin(x[0], x[1]),
    "max_pool2d_with_indices 0": lambda x: F.max_pool2d(x[None, None], (1, 2)),
    "max_pool3d_with_indices 0": lambda x: F.max_pool3d(x[None, None, None], (1, 1, 2)),
}


@pytest.mark.parametrize("call", EQUALS)
def test_equal_elements_share_a_gradient_or_one_gets_it(call):
    name, number = call.split()
    gets = NUMERICS[name].of_equals.get(number) or NUMERICS[name].of_equals[""]
    assert sorted(gradient(EQUALS[call], 3.0, 3.0)) == ([0.5, 0.5] if gets == "all" else [0.0, 1.0])


@pytest.mark.parametrize("name", [*ELEMENTWISE, *MIXING])
def test_the_gradient_of_an_elementwise_node_depends_on_the_same_element(name):
    function = getattr(torch, name, None) or getattr(F, name)
    given = (0,) if name in MIXING else ()
    x = torch.tensor([0.2, 0.3, 0.6], dtype=torch.float64, requires_grad=True)
    jacobian = torch.autograd.functional.jacobian(lambda x: function(x, *given), x)
    is_diagonal = torch.equal(jacobian, jacobian.diag().diag())
    assert is_elementwise(function(x, *given).grad_fn) == is_diagonal == (name in ELEMENTWISE)
