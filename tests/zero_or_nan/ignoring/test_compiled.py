"""Compiled regions: their backward graph is followed where they are contaminated, and no miss is silent."""

import json
import os
import random
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
import torch._inductor.config
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.decomposition import select_decomp_table
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from zero_or_nan import ignoring
from zero_or_nan.ignoring.extras.compiled import meanings
from zero_or_nan.ignoring.extras.compiled import region as graphs

NAN = float("nan")

pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    pytest.mark.filterwarnings("ignore:Your compiler for AOTAutograd"),
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Skipping serial"),
]


def gradient(program, x, backward=ignoring.backward):
    """Of a program's result by x, and what `ignoring` warned of."""
    leaf = x.clone().requires_grad_()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        backward(program(leaf))
    return leaf.grad, [str(each.message) for each in told if "ignoring could not follow" in str(each.message)]


class Hidden:
    """Runs a graph, and does not show it: a wrapper would copy what is in `__dict__`."""

    __slots__ = ("__weakref__", "module")

    def __init__(self, module):
        self.module = module

    def __call__(self, *arguments):
        return self.module(*arguments)


def of_inductor(module, inputs, compiler):
    """Compile with inductor's graphs, and no compiler of C++."""
    from torch._inductor.compile_fx import _recursive_joint_graph_passes  # warns, so not at the top

    def partition(joint, inputs, **rest):
        _recursive_joint_graph_passes(joint)
        rest.pop("static_lifetime_input_indices", None)
        return min_cut_rematerialization_partition(joint, inputs, compiler="inductor", **rest)

    backend = aot_autograd(
        fw_compiler=compiler,
        partition_fn=partition,
        decompositions=select_decomp_table(),
    )
    return backend(module, inputs)


def as_inductor(module, inputs):
    """A backend that shows as little as inductor does."""
    return of_inductor(module, inputs, lambda module, inputs: Hidden(module))


def of_others(module, inputs):
    """A backend that keeps its forward graph, as `aot_eager` does, and leaves out zeros, as inductor does."""
    return of_inductor(module, inputs, lambda module, inputs: module)


@pytest.fixture
def marked(marked):
    """Inductor marks what it compiles, and draws the random numbers that uncompiled code draws."""
    with torch._inductor.config.patch(fallback_random=True):
        yield


def in_place(x):
    y = x.sqrt() * 1
    y[1:] = 0
    return y.sum()


def under_autocast(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return torch.where(x > 0, (x.sqrt()[:, None] @ torch.ones(1, 2)).sum(1).float(), 0.0).sum()


def broken(x):
    y = x.sqrt()
    torch._dynamo.graph_break()
    return torch.where(x > 0, y, 0.0).sum()


BATCH_NORM = torch.nn.BatchNorm1d(2).eval()

FOLLOWED = {
    "where": (lambda x: torch.where(x > 0, x.sqrt(), 0.0).sum(), [1.0, 0.0, 4.0]),
    "slice": (lambda x: x.sqrt()[:1].sum(), [1.0, 0.0]),
    "index": (lambda x: x.sqrt()[[0, 2]].sum(), [1.0, 0.0, 4.0]),
    "cat": (lambda x: torch.cat([x.sqrt()[:1], x[1:]]).prod(), [1.0, 0.0]),
    "split": (lambda x: (x.sqrt().split(1)[0] + 1).sum(), [1.0, 0.0]),
    "max": (lambda x: x.sqrt().max(), [1.0, 0.0]),
    "relu": (lambda x: torch.where(x > 0, x.sqrt(), 0.0).relu().sum(), [1.0, 0.0]),
    "matrix product": (lambda x: (x.view(3, 1) @ torch.ones(1, 2))[[0, 2]].square().sum(), [1.0, NAN, 4.0]),
    "BatchNorm": (lambda x: BATCH_NORM(x.view(2, 2).sqrt())[:1].sum(), [1.0, 4.0, 0.0, 0.0]),
    "cross_entropy": (lambda x: F.cross_entropy(x.view(2, 2), torch.tensor([0, -100])), [1.0, 2.0, NAN, NAN]),
    "nll_loss beside another class": (
        lambda x: F.nll_loss(x.view(2, 2).log(), torch.tensor([0, -100])), [1.0, 0.0, 0.0, 0.0],
    ),
    "AMP": (under_autocast, [1.0, 0.0, 4.0]),
    "graph break": (broken, [1.0, 0.0, 4.0]),
    "embedding": (lambda x: F.embedding(torch.tensor([1, 1]), x.sqrt()[:, None]).sum(), [0.0, 4.0]),
    "reflection": (lambda x: F.pad(x.sqrt()[None], (1, 1), "reflect")[:, :1].sum(), [1.0, 4.0, 0.0]),
    "checkpoint": (
        lambda x: checkpoint(lambda z: torch.where(z > 0, z.sqrt(), 0.0), x, use_reentrant=False).sum(), [1.0, 0.0],
    ),
}  # fmt: skip


@pytest.mark.parametrize("backend", ["aot_eager", as_inductor])
@pytest.mark.parametrize("name", FOLLOWED)
def test_a_region_is_followed(name, backend, request):
    if backend is as_inductor:
        request.getfixturevalue("marked")
    program, numbers = FOLLOWED[name]
    x = torch.tensor(numbers)
    wanted, _ = gradient(program, x)
    found, told = gradient(torch.compile(program, backend=backend), x)
    plain, _ = gradient(torch.compile(program, backend=backend), x, torch.autograd.backward)
    assert wanted.isfinite().all() and not told
    torch.testing.assert_close(found, wanted)
    assert torch.equal(found[plain.isfinite()], plain[plain.isfinite()])


class LikeWhere(torch.autograd.Function):
    """Its backward is that of a `where`, and its zeros are a convention."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return torch.where(x > 0, gradient, 0.0)


class Clipped(LikeWhere):
    """The same, and its forward function selects."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.where(x > -1, x, 0.0)


class LikeSlice(torch.autograd.Function):
    """Its backward is that of a slice, and its zeros are a convention."""

    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        found = torch.zeros_like(gradient)
        found[:1] = gradient[:1]
        return found


def positive(x):
    return torch.where(x > 0, x, 0.0).sum()


CLASSES = torch.tensor([0, 1])


class PickedByNumbers(torch.autograd.Function):
    """Its backward is that of `nll_loss`, and its zeros are a convention."""

    @staticmethod
    def forward(ctx, scores):
        return scores.sum() * 1

    @staticmethod
    def backward(ctx, gradient):
        return torch.ops.aten.nll_loss_backward(gradient, torch.ones(2, 2), CLASSES, None, 2, -100, torch.ones(()))


USED = {
    "the same where, of the user": (
        lambda x: (lambda y: positive(y) + LikeWhere.apply(y).sum())(x.sqrt()), [1.0, 0.0],
    ),
    "the same slice, of the user": (
        lambda x: (lambda y: y[:1].sum() + LikeSlice.apply(y).sum())(x.sqrt()), [1.0, 0.0],
    ),
    "LPPool": (
        lambda x: F.lp_pool1d(x.sqrt().view(1, 1, -1), 2, 2).sum(), [0.0, 0.0, 1.0, 2.0],
    ),
    "pow": (lambda x: (x.sqrt() ** 0).sum() + x.sum(), [0.0, 1.0]),
    "relu beside clamp": (
        lambda x: (lambda y: y.relu().sum() + y.clamp(min=0).sum())(x.log()), [2.0, NAN],
    ),
    "std": (lambda x: x.sqrt().std(), [0.0, 0.0]),
    "sign beside a part": (lambda x: torch.cat([x.sqrt().sign()[:1], x[1:]]).sum(), [0.0, 1.0]),
    "clamp beside the same condition": (
        lambda x: (lambda y: torch.where(y >= 0, 1.0, 2.0).sum() + y.clamp(min=0).sum())(x.log()), [2.0, NAN],
    ),
    "nll_loss with a weight of 0": (
        lambda x: F.nll_loss(x.view(2, 2).log(), torch.tensor([0, 1]), torch.tensor([0.0, 1.0])), [0.0, 1.0, 1.0, 2.0],
    ),
    "nll_loss beside the same product": (
        lambda x: (lambda y: F.nll_loss(y, CLASSES, reduction="sum") + PickedByNumbers.apply(y))(x.view(2, 2).log()),
        [1.0, 0.0, 1.0, 2.0],
    ),
    "a function of the user": (lambda x: Clipped.apply(x.sqrt()).sum(), [0.0, 0.0]),
}  # fmt: skip


@pytest.mark.parametrize("backend", ["aot_eager", "aot_eager_decomp_partition", as_inductor])
@pytest.mark.parametrize("name", USED)
def test_what_the_loss_uses_stays_nan(name, backend, request):
    if backend is as_inductor:
        request.getfixturevalue("marked")
    program, numbers = USED[name]
    x = torch.tensor(numbers)
    plain, _ = gradient(program, x, torch.autograd.backward)
    found, _ = gradient(torch.compile(program, backend=backend), x)
    uncompiled, _ = gradient(program, x)
    assert not plain.isfinite().all()
    assert torch.equal(found.isfinite() & ~uncompiled.isfinite(), torch.zeros(len(x), dtype=torch.bool))


NOT_FOLLOWED = {
    "a write into a view": (in_place, [1.0, 0.0]),
    "a derivative of ours": (lambda x: x.sqrt().cumprod(0)[:1].sum(), [1.0, 0.0]),
    "a comparison that was saved": (lambda x: x.sqrt().amax(), [1.0, 0.0]),
    "a norm that selects": (lambda x: torch.linalg.vector_norm(x.sqrt(), float("inf")), [1.0, 0.0]),
    "a product with 0 that PyTorch puts in": (lambda x: F.softshrink(x.sqrt()).sum(), [1.0, 0.0]),
}


@pytest.mark.parametrize("backend", ["aot_eager", "aot_eager_decomp_partition"])
@pytest.mark.parametrize("name", NOT_FOLLOWED)
def test_what_is_not_followed_warns(name, backend):
    program, numbers = NOT_FOLLOWED[name]
    found, told = gradient(torch.compile(program, backend=backend), torch.tensor(numbers))
    assert found[0].isfinite() and (found[1].isfinite() or len(told) == 1 and "CompiledFunction" in told[0])


LEFT_OUT = {
    "a result of its own": (
        lambda x: (x.sqrt(), x.sqrt().sign()), lambda roots, signs: roots[:1].sum() + signs.sum(),
    ),
    "a part of the same result": (
        lambda x: (torch.cat([x.sqrt() * 2, x.sqrt().sign()]),), lambda both: both[[0, 2, 3]].sum(),
    ),
}  # fmt: skip
"""Programs, and their losses. All use the sign of a root, and none the second root otherwise."""


@pytest.mark.parametrize("backend", [as_inductor, of_others])
@pytest.mark.parametrize("is_marked", [True, False])
@pytest.mark.parametrize("name", LEFT_OUT)
def test_a_zero_that_the_compiler_leaves_out_still_counts(name, is_marked, backend, request):
    """The zero is the derivative of `sign`, and is added to a cotangent that is ignored."""
    if is_marked:
        request.getfixturevalue("marked")
    program, loss = LEFT_OUT[name]
    compiled = torch.compile(program, backend=backend)
    found, told = gradient(lambda x: loss(*compiled(x)), torch.tensor([1.0, 0.0]))
    assert found[1].isnan() and ("ignoring.follow_compiled()" in told[0]) is not is_marked


@pytest.mark.parametrize("name", ["where", "index", "split", "relu", "matrix product", "BatchNorm", "embedding"])
def test_without_marks_the_warning_names_the_line_to_add(name):
    program, numbers = FOLLOWED[name]
    x = torch.tensor(numbers)
    found, told = gradient(torch.compile(program, backend=as_inductor), x)
    wanted, _ = gradient(program, x)
    assert torch.allclose(found, wanted) or len(told) == 1 and "ignoring.follow_compiled()" in told[0]


def test_marks_keep_what_was_set_before(marked, monkeypatch):
    seen = []
    for name in ("joint_custom_pre_pass", "joint_custom_post_pass"):
        setattr(torch._inductor.config, name, seen.append)  # the fixture sets it back
    monkeypatch.setattr(meanings, "_is_followed", False)
    ignoring.follow_compiled()
    passes = torch._inductor.config.joint_custom_pre_pass
    ignoring.follow_compiled()
    assert torch._inductor.config.joint_custom_pre_pass is passes
    assert passes.uuid() is None  # unknown code: nothing may come from a cache
    found, _ = gradient(torch.compile(selected, backend=as_inductor), torch.tensor([1.0, 0.0]))
    assert found.tolist() == [1, 0] and len(seen) >= 2


def test_an_older_release_is_told_what_it_lacks(unmarked, monkeypatch):
    monkeypatch.setattr(torch, "__version__", torch.torch_version.TorchVersion("2.7.1"))
    with pytest.warns(UserWarning, match=r"needs PyTorch 2.8 or newer, and this is 2.7.1"):
        ignoring.follow_compiled()
    assert torch._inductor.config.joint_custom_pre_pass is None and not meanings.is_followed()


ANEW = """
import sys, warnings, torch
from torch._dynamo.utils import counters
from zero_or_nan import ignoring

warnings.simplefilter("error", UserWarning)
ignoring.follow_compiled()
x, factor = torch.tensor([1.0, 0.0, 4.0], requires_grad=True), float(sys.argv[1])
warnings.filterwarnings("ignore", "Skipping serial")
try:
    loss = torch.compile(lambda x: torch.where(x > 0, x.sqrt() * factor, 0.0).sum() + x.sqrt()[:1].sum())(x)
except torch._dynamo.exc.BackendCompilerFailed:
    raise SystemExit(5)
ignoring.backward(loss)
print(x.grad.tolist(), counters["inductor"]["fxgraph_cache_hit"])
"""


def test_marks_outlast_the_compilers_cache(marked):
    source = str(Path(ignoring.__file__).parents[2])
    factor = 2 + random.SystemRandom().random()  # nothing is in the cache yet; other tests seed `random`
    for hits in (0, 2):
        process = [sys.executable, "-c", ANEW, str(factor)]
        ran = subprocess.run(process, env={**os.environ, "PYTHONPATH": source}, capture_output=True, text=True)
        if ran.returncode == 5:
            pytest.skip("nothing to compile with here")
        assert ran.returncode == 0, ran.stderr
        found, _, counted = ran.stdout.strip().rpartition(" ")
        wanted = torch.tensor([(factor + 1) / 2, 0, factor / 4])
        torch.testing.assert_close(torch.tensor(json.loads(found)), wanted)
        assert int(counted) == hits, ran.stderr


@pytest.mark.parametrize("dropout, draws", [(0.0, False), (0.5, True)])
def test_attention_without_dropout_may_be_computed_again(dropout, draws):
    """Inductor may do so in backward."""
    rows = torch.ones(1, 1, 2, 2)
    graph = torch.fx.Graph()
    node = graph.call_function(
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default, (rows, rows, rows, dropout)
    )
    assert graphs._draws(node) is draws
    assert not graphs._draws(graph.call_function(node.target, (rows, rows, rows)))
    assert graphs._draws(graph.call_function(torch.ops.aten.native_dropout.default, (rows, dropout, True)))


def selected(x):
    return torch.where(x > 0, x.sqrt() * 2, 0.0).sum()


def test_a_clean_pass_interprets_nothing(monkeypatch):
    monkeypatch.setattr(
        "zero_or_nan.ignoring.extras.compiled.step.region_of", lambda forward: pytest.fail("interpreted")
    )
    x = torch.tensor([1.0, 4.0, -1.0])
    program = torch.compile(lambda x: torch.where(x > 0, x * 2, 0.0).sum(), backend="aot_eager")
    assert gradient(program, x)[0].tolist() == [2, 2, 0]


def test_a_graph_for_many_sizes_is_followed():
    program = torch.compile(selected, backend="aot_eager", dynamic=True)
    for size in (3, 5, 4):
        x = torch.arange(float(size))
        found, told = gradient(program, x)
        assert not told and torch.equal(found, gradient(selected, x)[0])


def test_passes_repeat_and_leave_nothing_behind():
    x = torch.tensor([1.0, 0.0], requires_grad=True)
    loss = torch.compile(selected, backend="aot_eager")(x)
    forward = loss.grad_fn._forward_cls
    before = vars(forward)["_backward_impl"]
    ignoring.backward(loss, retain_graph=True)
    ignoring.backward(loss)
    assert vars(forward)["_backward_impl"] is before and x.grad.tolist() == [2, 0]


def test_a_selection_behind_the_region_and_masks_that_are_asked_for():
    x = torch.tensor([1.0, 0.0, 4.0], requires_grad=True)
    roots = torch.compile(lambda x: x.sqrt() * 2, backend="aot_eager")
    (masked,) = ignoring.grad(torch.where(x > 0, roots(x), 0.0).sum(), [x], ignored="masked")
    assert masked.get_mask().tolist() == [True, False, True]
    inside = checkpoint(roots, x, use_reentrant=False)  # reading the saved tensors computes them again, once
    ignoring.backward(torch.where(x > 0, inside, 0.0).sum())
    assert x.grad.tolist() == [1, 0, 0.5]


@pytest.fixture
def held(monkeypatch):
    """Whether the arguments of each region that ran were held."""
    found, note = [], graphs.Arguments.note

    def noting(arguments, values):
        note(arguments, values)
        found.append(arguments.values is not None)

    monkeypatch.setattr(graphs.Arguments, "note", noting)
    return found


@pytest.mark.parametrize(
    ("program", "numbers", "is_held"),
    [
        (lambda x: torch.relu(x * 2).sum(), [1.0, 0.0], False),
        (lambda x: torch.relu(x * 2).sum(), [1.0, NAN], True),
        (lambda x: x.sqrt().relu().sum(), [1.0, 4.0], True),  # could be infinite
    ],
)
def test_arguments_are_held_only_if_they_may_be_needed(program, numbers, is_held, held):
    found, _ = gradient(torch.compile(program, backend="aot_eager"), torch.tensor(numbers))
    assert held == [is_held] and found.isfinite().all()


def test_arguments_of_a_graph_that_cannot_be_followed_are_not_even_looked_at(held):
    x = torch.tensor([1.0, 0.0])
    found, told = gradient(torch.compile(lambda x: x.sqrt().cumprod(0)[:1].sum(), backend="aot_eager"), x)
    assert not held and found[1].isnan() and "whose derivative ignoring replaces" in told[0]


def test_arguments_are_held_for_masks_and_for_what_is_ahead(held):
    x = torch.tensor([4.0, 1.0], requires_grad=True)
    program = torch.compile(lambda x: torch.relu(x * 2)[:1].sum(), backend="aot_eager")
    (masked,) = ignoring.grad(program(x), [x], ignored="masked")
    ignoring.backward(program(x.sqrt()))
    assert held == [True, True] and masked.get_mask().tolist() == [True, False]


def test_a_parameter_is_read_until_it_was_finite_once(held):
    """Later it may become NaN: the first such pass warns, and the next is followed."""
    weight, other = (torch.nn.Parameter(torch.tensor([1.0, 2.0])) for _ in range(2))
    program = torch.compile(lambda x, weight: (x * weight)[:1].sum(), backend="aot_eager")
    x = torch.tensor([1.0, 3.0], requires_grad=True)

    def found(weight):
        x.grad = None
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            ignoring.backward(program(x, weight))
        return held.pop(), len(told), x.grad[1].item()

    assert found(weight) == (False, 0, 0)
    with torch.no_grad():
        other[1] = NAN
    assert found(other) == (True, 0, 0)
    with torch.no_grad():
        weight[1] = NAN
    was_held, warned, gradient = found(weight)
    assert (was_held, warned) == (False, 1) and gradient != gradient
    assert found(weight) == (True, 0, 0)


@pytest.mark.parametrize(
    "break_it",
    [
        lambda patch: patch.setattr("zero_or_nan.ignoring.extras.compiled.step.tangents_of", lambda forward: [0, 0]),
        lambda patch: patch.setattr("zero_or_nan.ignoring.extras.compiled.step.tangents_of", lambda forward: []),
        lambda patch: patch.setattr("zero_or_nan.ignoring.extras.compiled.step._agree", lambda *results: False),
        lambda patch: patch.setattr(graphs, "_graph_inside", lambda compiled: None),
        lambda patch: patch.setattr(graphs.Arguments, "note", lambda arguments, values: None),
        lambda patch: patch.delitem(ignoring.RULES, torch.ops.aten.div),
    ],
    ids=["tangents", "no tangents", "numbers", "forward graph", "arguments", "rule"],
)
def test_whatever_does_not_match_warns(break_it, monkeypatch):
    x = torch.tensor([1.0, 0.0], requires_grad=True)
    loss = torch.compile(selected, backend="aot_eager")(x)
    break_it(monkeypatch)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        ignoring.backward(loss)
    assert x.grad[0] == 1 and x.grad[1].isnan() and len(told) == 1


def test_a_result_that_does_not_match_leaves_all_of_them_as_they_were(monkeypatch):
    """The last one does not match. By then the others have been merged."""

    def agree(exact, *_):
        seen.append(exact)
        return len(seen) < 4

    def gradients(backward):
        model.zero_grad()
        backward(model(torch.tensor([[1.0, 2.0, 3.0], [NAN, NAN, NAN]]))[:1].sum())
        return [parameter.grad for parameter in model.parameters()]

    seen = []
    monkeypatch.setattr("zero_or_nan.ignoring.extras.compiled.step._agree", agree)
    layers = [torch.nn.Linear(3, 3), torch.nn.Tanh(), torch.nn.Linear(3, 3)]
    model = torch.compile(torch.nn.Sequential(*layers), backend="aot_eager")
    plain = gradients(torch.autograd.backward)
    with pytest.warns(UserWarning, match="other numbers than its code"):
        ours = gradients(ignoring.backward)
    assert len(seen) == 4 and sum(bool(one.isnan().any()) for one in seen[:3]) > 1
    torch.testing.assert_close(ours, plain, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("is_autocast", [False, True])
@pytest.mark.parametrize("bad", [NAN, float("inf")])
def test_a_loss_that_selects_from_what_inductor_compiled(bad, is_autocast, marked):
    torch.manual_seed(0)
    layers = [torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.GELU(), torch.nn.Linear(8, 3)]
    model = torch.nn.Sequential(*layers, torch.nn.ReLU(), torch.nn.Softmax(-1))
    rows, used = torch.randn(3, 4), torch.tensor([[True], [True], [False]])
    compiled = torch.compile(model)
    try:
        compiled(rows)
    except torch._dynamo.exc.BackendCompilerFailed as error:
        pytest.skip(f"nothing to compile with here: {error}")

    def gradients(backward, model, rows):
        model.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_autocast):
            result = model(rows).float()
        backward(torch.where(used, result.square(), 0.0).sum())
        return [parameter.grad.clone() for parameter in model.parameters()]

    # Compiled code rounds less often to bfloat16.
    wanted = gradients(torch.autograd.backward, compiled if is_autocast else model, rows)
    spoiled = torch.where(used, rows, bad)
    close = {"rtol": 0.01, "atol": 0.01} if is_autocast else {}
    torch.testing.assert_close(gradients(ignoring.backward, compiled, spoiled), wanted, **close)
    clean, plain = (gradients(by, compiled, rows) for by in (ignoring.backward, torch.autograd.backward))
    assert all(map(torch.equal, clean, plain))
