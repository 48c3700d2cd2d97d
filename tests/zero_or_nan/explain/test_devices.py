"""Tensors that can't be looked into, or only in their own way: nothing breaks, nothing is told that is not so."""

from math import nan

import pytest
import torch
from origins import report_of, told
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.zero_or_nan.ignoring.processes import results_of_two
from zero_or_nan import explain
from zero_or_nan.explain.program.code import plan_of

pytestmark = pytest.mark.filterwarnings("ignore:Sparse")  # they are in beta state, PyTorch says


def spoil():
    """log 0 under `where`: the watch goes on to find what comes after."""
    x = torch.tensor([1.0, 0.0], requires_grad=True)
    torch.where(x > 0, x.log(), x * 0).sum().backward()


SPOILT = [("contaminated", "forward", "log")]


def meta():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU()).to("meta")
    (model(torch.empty(2, 3, device="meta")) / 0).log().sum().backward()


def fake():
    with FakeTensorMode():
        w = torch.zeros(3, requires_grad=True)
        (w / 0).log().sum().backward()


def nested():
    for layout in (torch.jagged, torch.strided):
        rows = [torch.ones(2, requires_grad=True), torch.ones(3, requires_grad=True)]
        nested = torch.nested.as_nested_tensor(rows, layout=layout)
        (nested * 2).to_padded_tensor(0.0).sum().backward()


def sparse():
    """The isolated node's degree ** -0.5 is infinite, and no edge reads it."""
    edges, w = torch.tensor([[0, 1], [1, 0]]), torch.ones(3, 2, requires_grad=True)
    for make in (lambda x: x, lambda x: x.coalesce(), lambda x: x.to_sparse_csr()):
        adjacency = make(torch.sparse_coo_tensor(edges, torch.tensor([1.0, 2.0]), (3, 3)))
        torch.sparse.mm(adjacency, w * 2).sum().backward()
    embedding = nn.Embedding(4, 2, sparse=True)
    embedding(torch.tensor([1, 2])).sum().backward()
    assert embedding.weight.grad.is_sparse


def masked():
    x = torch.masked.masked_tensor(torch.tensor([1.0, nan]), torch.tensor([True, False]), requires_grad=True)
    (x * 2).sum().backward()


def other_floats():
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2, torch.float16, torch.bfloat16, torch.float64):
        x = torch.ones(70_000, requires_grad=True)
        ((x * 2).to(dtype).to(torch.float32) * 3).sum().backward()


CLEAN = [meta, fake, nested, sparse, masked, other_floats]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested")
@pytest.mark.filterwarnings("ignore:It is not recommended to create a MaskedTensor")
@pytest.mark.parametrize("program", CLEAN)
def test_nothing_is_told_of_them_and_the_watch_goes_on(program):
    with explain() as report:
        program()
        assert program is masked or report.ok
        spoil()
    assert told(report)[-1:] == SPOILT and (program is masked or len(report) == 1)


class Counting(torch.Tensor):
    seen = 0

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        Counting.seen += 1
        return super().__torch_function__(func, types, args, kwargs)


def test_a_subclass_that_counts_sees_as_many_functions():
    def run():
        Counting.seen = 0
        x = torch.tensor([1.0, 0.0]).as_subclass(Counting).requires_grad_()
        loss = torch.where(x > 0, x.log(), x * 0).sum()
        loss.backward()
        return Counting.seen, type(loss), str(torch.Tensor(x.grad))

    plain = run()
    with explain() as report:
        assert run() == plain
    assert told(report) == SPOILT


SCRIPT = """
from zero_or_nan.explain import NotFiniteError
from zero_or_nan.explain.births.findings import Mistakes

Mistakes.are_raised = True
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(2, 3), nn.Softplus()))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
good = torch.ones(2, 2)
rows = good * (math.nan if rank == 1 else 1)

def reported(name, work):
    with explain() as report:
        work()
    tell(name, [[o.kind, o.phase, o.operator, o.rank, o.module] for o in report])
    return report

def in_parallel():
    model(good).sum().backward()
    torch.zeros(1, requires_grad=True).sqrt().sum().backward()

def shared(last):
    return distribute_tensor(torch.tensor([[1.0, 2.0], [last, 4.0]]), mesh, [Shard(0)]).requires_grad_()

def multiplied():
    # Only one process has the NaN, and the product needs both: to run it again would wait forever.
    x = shared(0.0).detach()
    ((x / x) @ shared(3.0)).sum().backward()

reported("DDP, clean", in_parallel)
tell("notes", str(reported("DDP", lambda: model(rows).sum().backward())))
reported("product", multiplied)
reported("gathered", lambda: shared(0.0).log().full_tensor().square().sum().backward())

def step(x):
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()

def agrees():  # a collective that each process has to reach
    count = torch.ones(1)
    dist.all_reduce(count)
    return count.item() == 2

def kept(name, call):
    before = str(list(model.parameters()))
    try:
        call()
        raised = None
    except NotFiniteError as error:
        raised = [origin.rank for origin in error.report], "see the other ranks" in str(error)
    tell(name, [raised, str(list(model.parameters())) == before, agrees()])

def watched():
    with explain(on_nan="raise"):
        step(rows)

def alone():  # a limit that the docstring states
    with explain(on_nan="raise"), model.no_sync():
        model(rows).sum().backward()

optimizer.zero_grad()
kept("raise", watched)
kept("on_failure", lambda: explain.on_failure(step)(rows))
kept("on_failure, clean", lambda: explain.on_failure(step)(good))
kept("no_sync", alone)
dist.destroy_process_group()
"""


def test_the_result_of_a_collective_is_not_read():
    """It may not be there yet."""
    assert not plan_of(torch.ops._c10d_functional.all_gather_into_tensor).is_checked
    assert not plan_of(torch.ops._c10d_functional.wait_tensor.default).is_checked


def test_several_processes(tmp_path):
    """Each tells its own origins, with its rank. On a failure all raise together, and none waits for another."""
    names = ["DDP, clean", "notes", "DDP", "product", "gathered", "raise", "on_failure", "on_failure, clean", "no_sync"]
    first, second = results_of_two(SCRIPT, tmp_path / "store", names)
    for rank, found in enumerate((first, second)):
        assert found["DDP, clean"] == [["undefined", "backward", "sqrt", rank, ""]]
    assert first["DDP"] == first["product"] == [] and second["DDP"] == [["bad input", "forward", "linear", 1, "0"]]
    assert first["notes"].startswith("a gradient is not finite, and it came from another process (one backward pass")
    assert "see the other ranks" in first["notes"]
    assert second["product"] == [["undefined", "forward", "div", 1, ""]]
    assert first["gathered"] == [["bad input", "forward", "Redistribute", 0, ""]]
    assert second["gathered"] == [["undefined", "forward", "log", 1, ""]]
    for name in ("raise", "on_failure"):
        assert (first[name], second[name]) == ([[[], True], True, True], [[[1], False], True, True])
    assert first["on_failure, clean"] == second["on_failure, clean"] == [None, False, True]
    assert first["no_sync"][0] is None and second["no_sync"][0] == [[1], False]


@pytest.mark.parametrize("use", [lambda a, w: a @ w, lambda a, w: a.to_dense() * w], ids=["product", "dense"])
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc])
def test_data(layout, use):
    """NaN in the data is bad input; nothing else is told."""
    adjacency = torch.tensor([[1.0, nan, 0.0], [0.0, 0.0, 3.0], [1.0, 0.0, 0.0]]).to_sparse(layout=layout)
    weight = torch.ones(3, 3, requires_grad=True)
    (origin,) = report_of(lambda: use(adjacency, weight).sum().backward())
    assert (origin.kind, origin.phase, origin.count) == ("bad input", "forward", 1)
    assert "the loss" in origin.reached and "nan in adjacency" in origin.operands
    assert (origin.entries, origin.shape) == (([(2,)], (4,)) if layout is torch.sparse_csc else ([(0, 1)], (3, 3)))


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_what_is_made_before_and_in_a_sparse_tensor(layout):
    """A logarithm of 0 becomes a stored element; a sparse product overflows."""
    x = torch.tensor([1.0, 0.0], requires_grad=True)
    report = report_of(lambda: (x.log().diag().to_sparse(layout=layout) @ torch.ones(2, 1)).sum().backward())
    assert told(report) == [("undefined", "forward", "log")]
    assert "to_sparse" in report.origins[0].path and {"x", "the loss"} <= set(report.origins[0].reached)

    weight = torch.ones(2, 1, requires_grad=True)
    with explain() as report:
        large = torch.eye(2).to_sparse(layout=layout) * 3e38
        (large * 2 @ weight).sum().backward()
    assert told(report) == [("overflow", "forward", "mul")]
    assert report.origins[0].entries == [(0, 0), (1, 1)]


@pytest.mark.parametrize("change", ["mul_", "add_", "zero_", "copy_"])
def test_in_place(change):
    """Sparse tensors that are changed may have their numbers elsewhere afterwards."""
    sparse, weight = torch.eye(2).to_sparse(), torch.ones(2, 1, requires_grad=True)
    other = {"mul_": [2], "zero_": []}.get(change, [torch.eye(2).to_sparse()])
    with explain() as report:
        sparse.mul_(3e38).mul_(2)
        getattr(sparse, change)(*other)
        (sparse @ weight).sum().backward()
    assert told(report) == ([("overflow", "forward", "mul")] if change in ("mul_", "add_") else [])


@pytest.mark.parametrize("make", [nn.Embedding, nn.EmbeddingBag])
def test_gradients_of_embeddings(make):
    """A sparse gradient is reached; the loss is finite."""
    table = make(4, 2, sparse=True)
    nn.init.zeros_(table.weight)
    with explain() as report:
        rows = table(torch.tensor([[1, 2]]))
        torch.where(rows > 0, rows.log(), rows).sum().backward()
    assert told(report) == [("contaminated", "forward", "log")] and report.origins[0].reached == ["weight"]
