"""The same code in a wider dtype: right gradients, and the same random numbers, effects, and dtypes outside."""

import asyncio
import copy
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from zero_or_nan import in_float32, in_float64, wider


def leaf(*numbers, dtype=torch.float32):
    return torch.tensor(numbers, dtype=dtype, requires_grad=True)


# By name: a function that loses a number in float32, and its arguments.
LOST = {
    "an overflow": (lambda x: x.exp().sum().log(), [100.0, 101.0]),
    "an operand that is given by name": (lambda x: torch.exp(input=x).log(), [100.0, 101.0]),
    "an underflow": (lambda x: 1 / (x * x).sum(), [1e-25, 2e-25]),
    "a cancellation": (lambda x: ((x + 1e4) - 1e4).pow(2).sum().sqrt(), [1e-3, 2e-3]),
    "a copy that is written to": (lambda x: x.detach().clone().exp_().log().sum() * x.sum(), [100.0, 2.0]),
    "slopes that overflow, and cancel": (lambda x: 1 / x - (1 - 1e-6) / x, [5e-20, 1.0]),
    "a view of a leaf": (lambda x: x.view(2, 1)[0].exp() / x.view(2, 1)[1].exp(), [100.0, 101.0]),
    "a conversion": (lambda x: (x.half() * 1e5).float().log(), [0.5, 2.0]),
    "a number in the code": (lambda x: (x - torch.tensor([0.1, 0.2])).exp().pow(40).log(), [0.25, 0.5]),
    "a product of integers": (lambda x: x * (torch.tensor([2, 4]) / 3).pow(99).log(), [1.0, 2.0]),
    "a custom function": (lambda x: Square.apply(x).log(), [1e-25, 2.0]),
    "a transform": (lambda x: torch.func.vmap(torch.func.grad(lambda y: y.exp().add(1).log()))(x), [100.0, -1.0]),
    "a checkpoint": (lambda x: checkpoint(lambda y: y.exp().log(), x, use_reentrant=False), [100.0, 1.0]),
}


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * 2 * x


@pytest.mark.parametrize("name", LOST)
def test_gradients_are_those_of_float64(name):
    function, numbers = LOST[name]
    exact, x = leaf(*numbers, dtype=torch.float64), leaf(*numbers)
    with in_float64():
        function(x).sum().backward()
    assert x.grad.dtype is torch.float32
    exact = x.detach().double().requires_grad_()
    wanted = function(exact) if name != "a conversion" else exact.mul(1e5).log()
    wanted.sum().backward()
    torch.testing.assert_close(x.grad, exact.grad.float(), rtol=2e-6, atol=0.0)


def test_a_decorated_function_gives_results_in_the_dtype_that_they_would_have_had():
    def norm(x):
        h = x.float()
        return (h * h.square().mean().add(1e-6).rsqrt()).type_as(x), {"sum": x.sum(), "size": x.shape}, x.double()

    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        x = torch.ones(3, dtype=dtype)
        plain, found = norm(x), in_float64()(norm)(x)
        assert [each.dtype for each in (found[0], found[1]["sum"], found[2])] == [dtype, dtype, torch.float64]
        assert found[1]["size"] == plain[1]["size"] and type(found[1]["size"]) is torch.Size


def test_the_code_reads_its_own_dtypes():
    with in_float64():
        y = torch.ones(2) * torch.ones(2, dtype=torch.float16)
        assert y.dtype is torch.float32 and torch.finfo(y.dtype).eps == torch.finfo(torch.float32).eps
        assert nn.LSTM(2, 2)(y[None])[0].dtype is torch.float32
    assert y.dtype is torch.float64


def drawn():
    torch.manual_seed(0)
    layer, x = nn.Linear(4, 4), torch.ones(4, 4)
    y = (
        F.dropout(layer(x))
        + torch.rand_like(x)
        + torch.randn(4)
        + torch.empty(4, 4).uniform_()
        + nn.init.normal_(x * 1)
    )
    z = torch.distributions.Laplace(torch.zeros(3), 1.0).sample().sum() + torch.bernoulli(x * 0.5)
    return y + z + torch.distributions.Gamma(torch.ones(4), 1.0).rsample() + torch.rand(4, dtype=y.dtype)


def test_random_numbers_stay_the_same():
    torch.testing.assert_close(in_float64()(drawn)(), drawn())


def effects():
    """What code does to tensors from outside of it."""
    norm, x, w, p = nn.BatchNorm1d(3), torch.zeros(4), nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2))
    fused, q = nn.Parameter(torch.ones(2)), torch.zeros(3)
    steps = [torch.optim.Adam([w]), torch.optim.SGD([fused], 0.1, fused=True)]
    yield
    torch.manual_seed(0)
    norm(torch.randn(5, 3))
    x.view(2, 2)[0, 1] = 3
    x[torch.tensor([2])] = torch.tensor([5.0])
    x += 1
    x.mul_(torch.full((4,), 2.0))
    (w.square().sum() + fused.sum()).backward()
    w.grad = w.grad * 0.5
    p.sum().backward()
    p.data.add_(1)
    p.square().sum().backward()
    q.requires_grad_()
    for each in steps:
        each.step()
    torch.vmap(lambda row: row.mul_(2))(x.view(2, 2))
    yield [norm.running_mean, norm.running_var, x, w, w.grad, p, p.grad, fused, torch.tensor(q.requires_grad)]


def test_what_is_written_into_tensors_from_outside_is_kept():
    plain, wide = effects(), effects()
    next(plain), next(wide)
    wanted = next(plain)
    with in_float64():
        found = next(wide)
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype is other.dtype
        torch.testing.assert_close(one, other)


def test_a_model_from_outside_keeps_its_dtype():
    model, frozen = nn.Sequential(nn.Linear(2, 2), nn.Embedding(3, 2, max_norm=1.0, sparse=True)), nn.Linear(2, 2)
    with in_float64():
        model[0].float()
        frozen.requires_grad_(False)
        (model[0](torch.ones(2)) + model[1](torch.tensor([1]))).sum().backward()
    assert {each.dtype for each in model.parameters()} == {torch.float32} and not frozen.weight.requires_grad
    assert model[1].weight.grad.is_sparse


def test_inference_mode_and_autocast():
    layer, x = nn.Linear(2, 1), torch.full((1, 2), 300.0)
    nn.init.ones_(layer.weight), nn.init.zeros_(layer.bias)
    with torch.inference_mode(), in_float64():
        assert layer(x).item() == 600
    with torch.autocast("cpu", torch.float16):
        assert layer(x * 300).isinf().all() and in_float32()(lambda: layer(x * 300))().item() == 180000


def test_float32_leaves_float32_alone():
    x = torch.tensor([200.0], dtype=torch.float16)
    with in_float32():
        assert (x * x).float().item() == 40000 and (x * 1000).item() == 200000
        y = torch.tensor([1.0]) / 3
    assert y.dtype is torch.float32


def test_compiled_code_runs_uncompiled_inside():
    torch.compiler.reset()
    layer = torch.compile(lambda x: x.exp().log(), backend="eager")
    x = torch.tensor([100.0])
    assert layer(x).isinf().all() and in_float64()(layer.__call__)(x).item() == 100
    with in_float64():
        assert layer(x).item() == 100
    assert torch.compile(in_float64()(lambda x: x.exp().log()), backend="eager")(x).item() == 100
    assert layer(x).isinf().all()


def test_decorated_functions_that_call_each_other_take_no_longer():
    calls = []

    class Counted(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            calls.append(func)
            return func(*args, **(kwargs or {}))

    @in_float64()
    def nested(depth, x):
        return x + 1 if depth == 0 else nested(depth - 1, x) + 1

    counts = []
    for depth in (1, 2, 3):
        calls.clear()
        with Counted():
            nested(depth, torch.ones(2))
        counts.append(len(calls))
    assert counts[2] - counts[1] == counts[1] - counts[0]


def test_nothing_stays(monkeypatch):
    x = torch.tensor([100.0])

    def is_off():
        return x.exp().isinf().all() and not wider._on()

    with pytest.raises(ZeroDivisionError), in_float64():
        raise ZeroDivisionError
    assert is_off()
    found = []
    with in_float64():
        thread = threading.Thread(target=lambda: found.append(is_off()))
        thread.start()
        thread.join()
    assert found == [True]

    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(wider, "replace_engine", interrupted)
    with pytest.raises(KeyboardInterrupt), in_float64():
        pass
    assert is_off()


async def coroutine():
    await asyncio.sleep(0)


async def asynchronous():
    yield 1


def generator():
    yield 1


@pytest.mark.parametrize(
    "thing", [coroutine, asynchronous, generator, classmethod(drawn), staticmethod(drawn), nn.Linear]
)
def test_what_it_cannot_decorate_is_refused(thing):
    with pytest.raises(TypeError, match=r"in_float64 (can't decorate|decorates functions)"):
        in_float64()(thing)


def test_parentheses_are_asked_for():
    with pytest.raises(TypeError, match=r"write @in_float64\(\) above the function"):
        in_float64(drawn)


def test_a_method_can_be_decorated():
    class Model(nn.Module):
        @in_float64()
        def forward(self, x):
            """Overflows in float32."""
            return x.exp().sum().log()

    model = copy.deepcopy(Model())
    assert model(torch.tensor([100.0])).item() == pytest.approx(100) and "Overflows" in model.forward.__doc__
