"""Gradients of `DTensor`s on two processes: those of tensors in one, and on clean data the bits of plain PyTorch."""

import itertools
import json
import re

import pytest
from processes import needs_two, results_of_two
from sample import WHOLE

pytestmark = needs_two

# Of x (6, 4), whose rows 1, 2 and 4 are bad, and w (4, 4): `ok` tells the good rows, `rows` sums up what they give.
PROGRAMS = {
    "a network": "rows(x, torch.tanh(x @ w) @ w)",
    "a NaN that is used": "torch.where(ok(x) | x.isnan(), torch.tanh(x @ w), 0.0).sum()",
    "the logarithm of a row of one part is used at 0": "rows(x[:3], (x[:3] * w[0] * 0).log())",
    "three cotangents of where": "torch.where(x > 0, x.exp(), x @ w).nan_to_num(0.0, 0.0, 0.0).clamp(0, 5).sum()",
    "fused attention": "attention(torch.where(ok(x), x @ w, 0.0)[None, None], ok(x).t()[None, None])",
    "layer_norm": "rows(x, F.layer_norm(x @ w, (4,), w[0], w[1]) * x)",
    "cumprod": "rows(x, (x @ w).cumprod(1))",
    "embedding": "(F.embedding(c(torch.tensor([0, 3, 5, 5])), x.exp()) @ w).sum()",
    "a convolution": "rows(x, F.conv1d(x[:, None], w[:2, None, :3], w[:2, 3], padding=1).sum(1).exp())",
    "in place: a slice": "rows(x, by_slice(x @ w * 1, x))",
    "cross_entropy that uses a NaN": "F.cross_entropy(x @ w, c(torch.tensor([0, 1, -100, 3, -100, 1])))",
    "half precision": "rows(x, (x @ w).bfloat16().float().exp())",
}

# How x and w are spread: replicated, in rows or in columns. `make test-whole` runs a program with all nine pairs, in
# `make test` with the first three that PyTorch can do: as a rule, each way comes up once for x and once for w.
WAYS = {
    name: sorted(itertools.product(range(3), range(3)), key=lambda pair: (sum(pair) + number) % 3 != 0)
    for number, name in enumerate(PROGRAMS)
}
MOST = 9 if WHOLE else 3

SCRIPT = """
from unittest import mock
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

programs, pairs, most = json.loads(arguments[0])
plane = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))
nan, inf = math.nan, math.inf
here = slice(3 * rank, 3 * rank + 3)


def no_quick_look():
    return mock.patch.object(passes, "is_safe", lambda *_: False)


class Problems(list):
    def check(self, right, *what):
        if not right:
            self.append(" ".join(map(str, what))[:600])

    def close(self, expected, got, *what):
        for number, (a, b) in enumerate(zip(expected, map(full, got), strict=True)):
            self.check(close(a, b), *what, number, "should be", a.tolist(), "is", b.tolist())

    def same_bits(self, expected, got, *what):
        for number, (a, b) in enumerate(zip(expected, got, strict=True)):
            same = getattr(a, "placements", None) == getattr(b, "placements", None) and torch.equal(part(a), part(b))
            self.check(same, *what, number, "should be", a, "is", b)

    @contextlib.contextmanager
    def warned(self, *what):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            yield
        ours = {str(one.message) for one in told if str(one.message).startswith("ignoring")}
        self.check(not ours, *what, "warns", *ours)


def on_all(fact):
    facts = [None] * 2
    dist.all_gather_object(facts, fact)
    return facts


def full(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def part(tensor):
    return getattr(tensor, "_local_tensor", tensor)


def close(a, b):
    return torch.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True)


def spread(tensor, placement=Replicate()):
    return distribute_tensor(tensor.clone(), mesh, [placement])


def leaves(*tensors):
    return [tensor.clone().requires_grad_() for tensor in tensors]


def ok(x):
    return (x.abs() < 1e4).all(-1, keepdim=True)


def rows(x, y):
    return torch.where(ok(x), y, 0.0).sum()


def bad(x, *numbers):
    x = x.clone()
    for number in numbers:
        x[number] = torch.tensor([nan, inf, 3e38, -inf])[: x.shape[1]]
    return x


torch.manual_seed(0)
X, W = torch.randn(6, 4), torch.randn(4, 4) * 0.5
BAD = X.clone()
BAD[1], BAD[2], BAD[4] = nan, 3e38, torch.tensor([inf, 1.0, -inf, 3e38])


def compared(problems, run, where, looks):
    # What `run(auto, x, parallel)` gives in two processes, next to one. False if plain PyTorch can't do it.
    alone = run(torch.autograd, X, False)
    try:
        plain = run(torch.autograd, X, True)
    except Exception as error:
        plain = error
    if any(on_all(isinstance(plain, Exception))):
        return False
    if not all(close(a, full(b)) for a, b in zip(alone, plain, strict=True)):
        return False  # PyTorch's own mistake; 2.6 squares the parts of a sum
    for look in looks if all(bool(gradient.isfinite().all()) for gradient in alone) else ():
        with look, problems.warned(where, "clean"):
            problems.same_bits(plain, run(ignoring, X, True), where, "clean")
    with problems.warned(where):
        problems.close(run(ignoring, BAD, False), run(ignoring, BAD, True), where)
    return True


# Programs, for tensors that are spread in all ways.


def attention(x, mask):
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(x, x, x, attn_mask=mask).where(mask.transpose(-1, -2), 0.0).sum()


def by_slice(y, x):
    y[:, :2].mul_(x[:, :2])
    return y


def followed(text, pairs, most):
    problems, program = Problems(), eval("lambda x, w, c: " + text)
    ways = (Replicate(), Shard(0), Shard(1))
    runs = 0
    for of_x, of_w in ((ways[x], ways[w]) for x, w in pairs):

        def run(auto, x, parallel):
            given = [spread(x, of_x), spread(W, of_w)] if parallel else [x.clone(), W.clone()]
            given = [tensor.requires_grad_() for tensor in given]
            return auto.grad(program(*given, spread if parallel else lambda tensor: tensor), given)

        looks = [no_quick_look()] if of_x != of_w else [no_quick_look(), contextlib.nullcontext()]
        runs += compared(problems, run, f"{of_x} {of_w}", looks)
        if runs == most:
            break
    return problems if runs else None


# Recipes: a model and its loss, in one process or in two.


RECIPES, REGIONS = {}, {}


def recipe(name, **options):
    def register(make):
        RECIPES[name] = lambda *args: make(*args, **options)
        return make

    return register


columns, inner = ColwiseParallel, dict(use_local_output=False)


@recipe("checkpoint of DTensors", reentrant=False)
@recipe("reentrant checkpoint of DTensors", reentrant=True)
def checkpointed(parallel, x, reentrant):
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4)))
    if parallel:
        parallelize_module(model, mesh, {
            "0": columns(output_layouts=Replicate(), **inner),
            "1.0": columns(**inner),
            "1.2": RowwiseParallel(**inner),
        })
    return model, rows(x, full(checkpoint(model[1], model[0](x), use_reentrant=reentrant)).square())


@recipe("loss_parallel", targets=[0, -100, -100, 5, -100, 2])
@recipe("loss_parallel that uses a NaN", targets=[0, 3, -100, 5, -100, 2])
def cross_entropy(parallel, x, targets):
    model = nn.Linear(4, 6)
    if parallel:
        parallelize_module(model, mesh, columns(**inner))
    return model, F.cross_entropy(model(x), torch.tensor(targets))


@recipe("a vocabulary in parts")
def embedding(parallel, x):
    model = nn.Embedding.from_pretrained(x, freeze=False)
    if parallel:
        parallelize_module(model, mesh, RowwiseParallel(input_layouts=Replicate()))
    found = model(torch.tensor([0, 1, 2, 3, 4, 5, 5, 1]))
    return model, rows(found, found.exp() * found)


def followed_recipe(name):
    def run(auto, x, parallel):
        torch.manual_seed(0)
        with loss_parallel() if parallel and "loss_parallel" in name else contextlib.nullcontext():
            model, loss = RECIPES[name](parallel, x)
            auto.backward(loss)
        return [parameter.grad for parameter in model.parameters()]

    problems = Problems()
    return problems if compared(problems, run, name, (contextlib.nullcontext(), no_quick_look())) else None


# Where DTensors meet plain tensors, and the processes one another.


def region(name):
    return lambda check: REGIONS.setdefault(name, check)


def exponential(x, w):
    return rows(x, (x @ w).exp())


def exponential_of(x, y):
    return rows(x, y.exp())


def of_one_process(loss_of, *tensors):
    tensors = leaves(*tensors)
    return ignoring.grad(loss_of(*tensors), tensors)


def from_here(x, *placements):
    return DTensor.from_local(x, mesh, placements, run_check=False)


@region("parts of a sum of which one uses a NaN")
def local_losses_with_nan(problems):
    x = X.clone()
    x[1], x[4] = nan, nan
    used = torch.tensor([[True], [False], [True], [True], [True], [True]])
    expected = of_one_process(lambda x, w: torch.where(used, (x @ w).exp(), 0.0).sum(), x, W)
    x, w = leaves(spread(x), spread(W))
    mine = used.clone()
    mine[3 - 3 * rank : 6 - 3 * rank] = False
    local = (x @ w).to_local(grad_placements=[Partial()])
    problems.close(expected, ignoring.grad(torch.where(mine, local.exp(), 0.0).sum(), [x, w]))


@region("a process that ignores everything")
def everything_ignored(problems):
    x, w = leaves(bad(X, 0, 1, 2)[here], spread(W))
    y = (from_here(x, Shard(0)) @ w).to_local()
    of_x, of_w = ignoring.grad(exponential_of(x, y), [x, w])
    expected = of_one_process(exponential, bad(X, 0, 1, 2), W)
    problems.close([expected[0][here], expected[1]], [of_x, of_w])


@region("a process without rows")
def no_rows(problems):
    def loss_of(x, w):
        return torch.where(x @ w > 0, (x @ w).log(), 0.0).sum()

    x, w = leaves(spread(X[:1], Shard(0)), spread(W, Shard(1)))
    problems.close(of_one_process(loss_of, X[:1], W), ignoring.grad(loss_of(x, w), [x, w]))


@region("masked")
def masked(problems):
    for tensor in (X, BAD):
        x = spread(tensor, Shard(0)).requires_grad_()
        try:
            ignoring.grad(rows(x, x.exp()), [x], ignored="masked")
        except ValueError as error:
            problems.check("DTensor" in str(error), "says", error)
        else:
            problems.append("no error")


@region("accumulated after parts of a sum")
def accumulated_parts(problems):
    for order in ((X, BAD), (BAD, X), (X, BAD, X)):
        (one,), (two,) = leaves(W), leaves(spread(W))
        for x in order:
            ignoring.backward(exponential(x, one))
            ignoring.backward(exponential(spread(x, Shard(0)), two))
        problems.close([one.grad], [two.grad])


@region("two meshes")
def two_meshes(problems):
    x, w = leaves(spread(BAD, Shard(0)), spread(W, Shard(1)))
    y, v = leaves(
        distribute_tensor(BAD, plane, [Replicate(), Shard(0)]), distribute_tensor(W, plane, [Replicate(), Shard(1)])
    )
    got = ignoring.grad(exponential(x, w).full_tensor() + exponential(y, v).full_tensor(), [x, w, y, v])
    problems.close(of_one_process(exponential, BAD, W) * 2, got)


@region("a hook on one process")  # the last one: where it fails, the processes have lost touch
def hook_on_one(problems):
    x, w = leaves(spread(BAD, Shard(0)), spread(W))
    y = x @ w
    if rank == 0:
        y.register_hook(lambda gradient: gradient * 1.0)
    problems.close(of_one_process(exponential, BAD, W), ignoring.grad(exponential_of(x, y), [x, w]))


def checked(check):
    problems = Problems()
    with problems.warned():
        check(problems)
    return problems


def attempt(check, *args):
    try:
        return check(*args)
    except Exception as error:
        return [repr(error)]


for name, text in programs.items():
    tell(name, attempt(followed, text, pairs[name], most))
for name in RECIPES:
    tell(name, attempt(followed_recipe, name))
for name, check in REGIONS.items():
    tell(name, attempt(checked, check))
os._exit(0)  # whoever lost touch would wait for the others
"""


CASES = [*PROGRAMS, *re.findall(r'^@re(?:cipe|gion)\("([^"]+)"', SCRIPT, re.MULTILINE)]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """By case: what went wrong on each rank; None where plain PyTorch can't do it."""
    store = tmp_path_factory.mktemp("tensors") / "store"
    return results_of_two(SCRIPT, store, CASES, json.dumps([PROGRAMS, WAYS, MOST]), timeout=150, patience=20)


@pytest.mark.parametrize("case", CASES)
def test_gradients_are_those_of_one_process(results, case):
    found = [rank[case] for rank in results]
    if found == [None, None]:
        pytest.skip("this PyTorch can't do it")
    problems = [f"process {rank}: {problem}" for rank, told in enumerate(found) for problem in told or ()]
    assert not problems, "\n".join(problems[:6])
