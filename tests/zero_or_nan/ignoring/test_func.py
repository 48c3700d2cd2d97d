"""`ignoring.func`: beside `torch.func` if nothing is ignored, else beside float64 on the used elements alone."""

import math

import pytest
import torch
import torch.autograd.forward_ad as fw
from telling import Exponential
from torch import nn
from torch.func import functional_call
from torch.utils._pytree import tree_flatten, tree_map

from zero_or_nan import ignoring

func, inf, nan = ignoring.func, math.inf, math.nan
pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated"),  # PyTorch's forward mode calls it
    pytest.mark.filterwarnings("ignore:There is a performance drop"),  # of PyTorch's own vmap
]


def assert_same(found, right, exact=True):
    """The same structure, types, bits, and the same question whether it can be differentiated again."""
    ours, structure = tree_flatten(found)
    theirs, wanted = tree_flatten(right)
    assert structure == wanted
    for a, b in zip(ours, theirs, strict=True):
        assert type(a) is type(b)
        if isinstance(a, torch.Tensor):
            assert a.requires_grad == b.requires_grad
            torch.testing.assert_close(a, b, equal_nan=True, **(dict(rtol=0, atol=0) if exact else {}))
        else:
            assert a == b


def numbers(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


X, W, B = numbers(4, 3), numbers(3, 5), numbers(5)


torch.manual_seed(0)
MODEL = nn.Sequential(nn.Linear(3, 5), nn.GELU(), nn.LayerNorm(5), nn.Linear(5, 2))
PARAMETERS = dict(MODEL.named_parameters())
DETACHED = {name: parameter.detach() for name, parameter in PARAMETERS.items()}


def loss(parameters, rows):
    return functional_call(MODEL, parameters, (rows,)).square().mean()


CLEAN = {
    "arguments in another order": lambda f: f.grad_and_value(
        lambda x, w, b: torch.tanh(x @ w + b).square().sum(), (2, 0, 1)
    )(X, W, B),
    "detached parameters": lambda f: f.grad_and_value(loss, (0, 1))(DETACHED, X),
    "a result that does not depend on it": lambda f: f.grad(lambda x: W.sum())(X),
    "jacrev of a dict by a dict": lambda f: f.jacrev(
        lambda p, x: {"out": functional_call(MODEL, p, (x,)), "sum": (x.sum(),)}, (0, 1)
    )(DETACHED, X),
    "jacrev of nothing": lambda f: f.jacrev(lambda x: x[:0])(X),
    "jacrev of numbers": lambda f: f.jacrev(f.jacrev(lambda x, y: (x * x * y, {"both": y.sin()})), (0, 1))(*B[:2]),
    "vjp": lambda f: f.vjp(lambda a, b: {"u": a @ b, "v": a.sin()}, X, W)[1]({"u": numbers(4, 5), "v": X}),
    "vjp, aux": lambda f: f.vjp(lambda a: (a.sin(), a), X, has_aux=True)[2],
    "jacrev of grad": lambda f: f.jacrev(f.grad(lambda v: (v.exp() / v.exp().sum()).square().sum()))(B),
    "grad, of what is around": lambda f: f.grad(lambda v: f.grad(lambda u: (u * v).prod())(B).sum())(B + 1),
    "vmap of gradients": lambda f: torch.vmap(f.grad_and_value(loss), in_dims=(None, 0))(DETACHED, X),
    "vmap of jacrev of grad": lambda f: torch.vmap(f.jacrev(f.grad(lambda x: x.sin().prod())))(X),
}


@pytest.mark.parametrize("recording", [True, False])
@pytest.mark.parametrize("case", CLEAN)
def test_where_nothing_is_ignored_it_is_torch_func(case, recording):
    with torch.set_grad_enabled(recording):
        # In the others, torch.func adds the terms of a sum in another order.
        exact = case != "grad, of what is around" and "vmap" not in case
        assert_same(CLEAN[case](func), CLEAN[case](torch.func), exact)


# Where something is ignored.

BAD = [nan, inf, 3e38]


def with_bad_rows(rows):
    """Each second row is bad."""
    bad = torch.tensor(BAD)[torch.arange(len(rows)) % 3, None].expand_as(rows)
    return torch.stack([rows, bad], 1).flatten(0, 1)


def used(rows):
    return (rows.abs() < 10).all(-1)


def masked_loss(parameters, rows):
    out = functional_call(MODEL, parameters, (rows,))
    return torch.where(used(rows)[..., None], out.square(), 0).sum()


def in_float64(tree):
    return tree_map(lambda t: t.double(), tree)


def assert_close_to(found, right):
    for a, b in zip(tree_flatten(found)[0], tree_flatten(right)[0], strict=True):
        torch.testing.assert_close(a.detach().double(), b, rtol=1e-4, atol=1e-5)


def is_finite(tree):
    return all(bool(t.isfinite().all()) for t in tree_flatten(tree)[0])


def used_outputs(parameters, rows):
    return functional_call(MODEL, parameters, (rows,))[used(rows)]


BAD_ROWS = {
    "grad_and_value": lambda f, parameters, rows: f.grad_and_value(masked_loss)(parameters, rows),
    "jacrev": lambda f, parameters, rows: f.jacrev(used_outputs)(parameters, rows),
    "jacrev in chunks": lambda f, parameters, rows: f.jacrev(used_outputs, chunk_size=2)(parameters, rows),
}


@pytest.mark.parametrize("parameters", [PARAMETERS, DETACHED], ids=["parameters", "detached"])
@pytest.mark.parametrize("name", BAD_ROWS)
def test_bad_rows_do_not_reach_the_gradient(name, parameters):
    rows, gradient = with_bad_rows(X), BAD_ROWS[name]
    assert not is_finite(gradient(torch.func, parameters, rows))
    assert_close_to(gradient(func, parameters, rows), gradient(torch.func, in_float64(DETACHED), X.double()))


def test_equal_elements_share_the_gradient_of_a_maximum_under_vmap():
    for largest in (torch.max, torch.Tensor.min):
        for x in (torch.ones(1, 2), torch.zeros(1, 2)):
            ours, theirs = (
                torch.vmap(each.grad(lambda row, f=largest: f(row.sqrt())))(x) for each in (func, torch.func)
            )
            assert torch.equal(ours, theirs)


def test_the_determinant_of_a_singular_matrix_has_the_gradient_of_torch_func():
    x = torch.tensor([[1.0, 2.0], [2.0, 4.0]], dtype=torch.float64)
    torch.testing.assert_close(func.grad(torch.linalg.det)(x), torch.tensor([[4.0, -2.0], [-2.0, 1.0]]).double())


@pytest.mark.parametrize("chunk_size", [None, 1])
def test_a_row_of_a_jacobian_ignores_the_other_outputs(chunk_size):
    jacobian, x = ignoring.func.jacrev(torch.sqrt, chunk_size=chunk_size), torch.tensor([0.25, 0.0])
    assert jacobian(x).tolist() == [[1, 0], [0, torch.inf]]
    assert torch.vmap(jacobian)(torch.stack([x, x + 1]))[0].tolist() == [[1, 0], [0, torch.inf]]


@pytest.mark.parametrize("made", ["grad", "jacrev"])
def test_the_gradient_of_each_sample(made):
    """Each sample is a set of rows, one of which is bad."""

    def each(f, parameters, sets):
        return torch.vmap(getattr(f, made)(masked_loss), in_dims=(None, 0))(parameters, sets)

    good, bad = (torch.stack([change(X), change(X + 1)]) for change in (torch.clone, with_bad_rows))
    assert not is_finite(each(torch.func, DETACHED, bad))
    assert_close_to(each(func, DETACHED, bad), each(torch.func, in_float64(DETACHED), good.double()))


def roots(x):
    """Its first derivative is undefined at 0, its second is infinite there, and the loss ignores both."""
    return torch.where(x > 0, x.sqrt() * x.log(), 0)


SECOND = {
    "grad of grad": lambda f, x: f.grad(lambda v: (f.grad(lambda u: roots(u).sum())(v) * v).sum())(x),
    "grad of vjp": lambda f, x: f.grad(lambda v: f.vjp(roots, v)[1](v)[0].square().sum())(x),
}


@pytest.mark.parametrize("case", SECOND)
def test_gradients_of_gradients(case):
    x = torch.tensor([2.0, 3.0, 0.0, -1.0])
    positive = torch.tensor([2.0, 3.0], dtype=torch.float64)
    found, right = SECOND[case](func, x), SECOND[case](torch.func, positive)
    assert not is_finite(SECOND[case](torch.func, x))
    torch.testing.assert_close(found[:2].double(), right, rtol=1e-4, atol=1e-5)
    assert found[2:].tolist() == [0, 0]


def test_used_undefined_gradients_stay():
    assert func.grad(lambda x: x.sqrt().sum())(torch.tensor([0.0, 4.0])).tolist() == [inf, 0.25]
    assert func.grad(lambda x: (x.sqrt() * x).sum())(torch.zeros(1)).isnan().all()
    assert torch.vmap(func.grad(lambda x: (x.sqrt() * x).sum()))(torch.zeros(2, 1)).isnan().all()


def test_in_forward_mode():
    x = torch.tensor([2.0, 0.0])
    with fw.dual_level():
        slope = func.grad(lambda v: roots(v).sum())(fw.make_dual(x, torch.ones(2)))
        tangent = fw.unpack_dual(slope).tangent
    right = torch.func.grad(torch.func.grad(roots))(torch.tensor(2.0, dtype=torch.float64))
    assert tangent.tolist() == [pytest.approx(right.item(), rel=1e-5), 0.0]


def exponential(x):
    return torch.where(x < 50, x.exp(), 0.0).sum()


def test_in_inference_mode():
    outside = torch.tensor([1.0, 100.0])
    with torch.inference_mode():
        for x in (outside, outside.clone()):
            assert func.grad(exponential)(x).tolist() == [pytest.approx(math.e), 0.0]


def test_what_is_not_followed_is_warned_about():
    with pytest.warns(UserWarning, match="could not follow Exponential"):
        func.grad(lambda x: Exponential.apply(x.exp())[:1].sum())(torch.tensor([1.0, 100.0]))


# Mistakes.

TWO = torch.ones(2)
MISTAKES = {
    "not a scalar": (lambda f: f.grad(lambda x: x)(TWO), r"grad: .* real scalar tensor.* shape \(2,\).*jacrev"),
    "None": (lambda f: f.grad(lambda x: None)(TWO), "grad: .*should return tensors.*returned None"),
    "out of range": (lambda f: f.grad(torch.sum, 3)(TWO), "grad: argnums has 3.* 1 positional"),
    "twice": (lambda f: f.grad(torch.dot, (0, -2))(TWO, TWO), r"argnums should name each argument once.*\(0, -2\)"),
    "an empty tuple": (lambda f: f.grad(torch.sum, ())(TWO), "argnums is empty"),
    "a name": (lambda f: f.jacrev(torch.sum, "x")(TWO), "jacrev: argnums .*int.*'x'"),
    "a float inside": (lambda f: f.grad(lambda x: x["a"][0])({"a": [1.0]}), r"argument 0\['a'\]\[0\] is 1.0"),
    "integers": (lambda f: f.grad(lambda x: x.sum() * 1.0)(TWO.long()), "argument 0 is a tensor .*int64.*argnums"),
    "no aux": (lambda f: f.grad(torch.sum, has_aux=True)(TWO), r"has_aux=True .*\(result, aux\).*tensor of shape \(\)"),
    "integer outputs": (lambda f: f.jacrev(lambda x: x.long())(TWO), "jacrev: all outputs .*int64"),
    "another structure": (lambda f: f.vjp(torch.sin, TWO)[1]((TWO,)), "vjp: the cotangents should have the structure"),
    "a vector that is no tensor": (
        lambda f: f.vjp(torch.sin, TWO)[1](3.0),
        "vjp: the cotangents should be tensors.*3.0",
    ),
    "a complex jacobian": (lambda f: f.jacrev(lambda x: x * 1j)(TWO), "jacrev needs real numbers, and the result"),
    "chunks of nothing": (lambda f: f.jacrev(torch.sin, chunk_size=0), "chunk_size should be greater than 0"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_raise_what_torch_func_raises_and_say_more(mistake):
    make, message = MISTAKES[mistake]
    with pytest.raises((RuntimeError, ValueError, TypeError)) as theirs:
        make(torch.func)
    with pytest.raises(theirs.type, match=message):
        make(func)


def test_a_function_that_writes_into_its_argument():
    with pytest.raises(RuntimeError, match="wrote into its argument.*clone"):
        func.grad(lambda x: x.mul_(2).sum())(TWO.clone().requires_grad_() * 1)


AROUND = {
    "torch.func.grad": lambda x: torch.func.grad(lambda v: func.grad(torch.sum)(v).sum())(x),
    "what the function holds": lambda x: torch.func.grad(lambda v: func.grad(lambda u: (u * v).sum())(TWO).sum())(x),
}


@pytest.mark.parametrize("around", AROUND)
def test_other_transforms_around_it_are_refused(around):
    with pytest.raises(RuntimeError, match=r"ignoring.func.\w+ was called inside of torch.func"):
        AROUND[around](torch.ones(2))


def test_a_product_that_leaves_its_vmap_is_refused():
    pulls = []

    def keep(x):
        pulls.append(func.vjp(torch.sin, x)[1])
        return torch.vmap(pulls[-1])(torch.ones(3, 2))[0]

    with pytest.raises(RuntimeError, match="another level of torch.vmap"):
        torch.vmap(keep)(torch.ones(4, 2))
    with pytest.raises(RuntimeError, match="another level of torch.vmap"):
        pulls[-1](TWO)


LOOKED_AT = pytest.mark.filterwarnings("ignore:The .grad attribute")  # Dynamo looks at it


@pytest.mark.parametrize(
    "twice",
    [
        lambda gradient, x: gradient(x)[0],
        lambda gradient, x: gradient(x)[0] + x.sum(),  # plain PyTorch gives the second term alone
        lambda gradient, x: gradient(x * 2).sum(),
    ],
    ids=["alone", "with another term", "of a product"],
)
@LOOKED_AT
@pytest.mark.filterwarnings("ignore:ignoring could not follow")  # the first derivative is recorded
def test_the_second_derivative_of_a_compiled_function_is_refused(twice, fresh_compiler):
    gradient = func.grad(torch.compile(exponential, backend="aot_eager"))
    for x in ([1.0, 2.0], [1.0, 100.0]):
        with pytest.raises(RuntimeError, match="no second derivative; call the function that is not compiled"):
            func.grad(lambda x: twice(gradient, x))(torch.tensor(x))


@LOOKED_AT
def test_the_gradient_of_a_compiled_function_is_compiled(fresh_compiler):
    """Up to PyTorch 2.7, the same with torch.func gives the function in place of its gradient."""
    x = torch.tensor([1.0, 100.0])
    for made in (func.grad, func.jacrev, lambda f: lambda x: func.vjp(f, x)[1](torch.tensor(1.0))[0]):
        compiled = torch.compile(made(torch.compile(exponential, backend="eager")), backend="eager")
        torch.testing.assert_close(compiled(x), made(exponential)(x))


@LOOKED_AT
def test_the_gradient_of_a_compiled_function_is_a_factor(fresh_compiler):
    """It is recorded because of a weight, and what is differentiated does not go through it."""
    compiled, weight = torch.compile(exponential, backend="aot_eager"), torch.tensor([2.0, 3.0], requires_grad=True)
    x = torch.tensor([1.0, 2.0])
    factor = func.grad(lambda x: compiled(x * weight))(x)
    found = func.grad(lambda y: (func.grad(lambda x: compiled(x * weight))(x) * y).sum())(x)
    assert factor.requires_grad and torch.equal(found, factor) and bool(found.all())
