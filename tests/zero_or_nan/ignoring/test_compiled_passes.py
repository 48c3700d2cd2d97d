"""Passes over compiled regions: what they hold, what they leave behind, and the warning if graph and code differ."""

import sys

import pytest
import torch
import torch._inductor.config
from regions import as_inductor, gradient, quiet_compiler, selected
from telling import told
from torch.utils.checkpoint import checkpoint

from zero_or_nan import ignoring
from zero_or_nan.ignoring.extras.compiled import meanings
from zero_or_nan.ignoring.extras.compiled import region as graphs

NAN = float("nan")

pytestmark = quiet_compiler


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


def test_a_graph_for_many_sizes_is_followed():
    program = torch.compile(selected, backend="aot_eager", dynamic=True)
    for size in (3, 5, 4):
        x = torch.arange(float(size))
        found, messages = gradient(program, x)
        assert not messages and torch.equal(found, gradient(selected, x)[0])


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


def test_a_parameter_is_read_until_it_was_finite_once(held):
    """Later it may become NaN: the first such pass warns, and the next is followed."""
    weight, other = (torch.nn.Parameter(torch.tensor([1.0, 2.0])) for _ in range(2))
    program = torch.compile(lambda x, weight: (x * weight)[:1].sum(), backend="aot_eager")
    x = torch.tensor([1.0, 3.0], requires_grad=True)

    def found(weight):
        x.grad = None
        _, messages = told(lambda: ignoring.backward(program(x, weight)))
        return held.pop(), len(messages), x.grad[1].item()

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
    _, messages = told(lambda: ignoring.backward(loss))
    assert x.grad[0] == 1 and x.grad[1].isnan() and len(messages) == 1


def test_a_loss_that_selects_from_what_inductor_compiled_under_autocast(marked, inductor):
    torch.manual_seed(0)
    layers = [torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.GELU(), torch.nn.Linear(8, 3)]
    model = torch.nn.Sequential(*layers, torch.nn.ReLU(), torch.nn.Softmax(-1))
    rows, used = torch.randn(3, 4), torch.tensor([[True], [True], [False]])
    compiled = torch.compile(model)

    def gradients(backward, rows):
        compiled.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            result = compiled(rows).float()
        backward(torch.where(used, result.square(), 0.0).sum())
        return [parameter.grad.clone() for parameter in compiled.parameters()]

    wanted = gradients(torch.autograd.backward, rows)
    assert all(map(torch.equal, gradients(ignoring.backward, rows), wanted))
    spoiled = torch.where(used, rows, float("inf"))
    torch.testing.assert_close(gradients(ignoring.backward, spoiled), wanted, rtol=0.01, atol=0.01)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # of Dynamo, as it traces the call
def test_a_pass_within_compiled_code_takes_no_reference_away():
    """PyTorch 2.6 and 2.7 return Dynamo's callback without counting the reference: Python frees it in use."""
    x = torch.tensor([1.0, 0.0], requires_grad=True)
    loss = torch.where(x > 0, x.log(), 0).sum()
    compiled = torch.compile(lambda: ignoring.backward(loss, retain_graph=True), backend="eager")
    compiled()
    callback = dict(zip(compiled.__code__.co_freevars, compiled.__closure__, strict=True))["callback"].cell_contents
    held = [callback] * 100  # Python does not free it while references are missing
    before = sys.getrefcount(callback)
    for _ in range(10):
        compiled()
    assert sys.getrefcount(callback) == before
    assert len(held) == 100
