"""Tensors that can't be looked into, or only in their own way: nothing breaks, nothing is told that is not so."""

import pytest
import torch
from origins import told
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.zero_or_nan.ignoring.processes import results_of_two
from zero_or_nan import explain

inf, nan = float("inf"), float("nan")


def spoil():
    """log 0 under `where`: the watch goes on to find what comes after."""
    x = torch.tensor([1.0, 0.0], requires_grad=True)
    torch.where(x > 0, x.log(), x * 0).sum().backward()


SPOILT = [("contaminated", "forward", "log")]


def test_meta():
    with explain() as report:
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU()).to("meta")
        (model(torch.empty(2, 3, device="meta")) / 0).log().sum().backward()
        spoil()
    assert told(report) == SPOILT


def test_fake():
    with explain() as report:
        with FakeTensorMode():
            w = torch.zeros(3, requires_grad=True)
            (w / 0).log().sum().backward()
        spoil()
    assert told(report) == SPOILT


@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested(layout):
    with explain() as report:
        rows = [torch.zeros(2, requires_grad=True), torch.ones(3, requires_grad=True)]
        nested = torch.nested.as_nested_tensor(rows, layout=layout)
        (nested * 2).to_padded_tensor(nan).nansum().backward()
        spoil()
    assert told(report)[-1:] == SPOILT and rows[0].grad.isfinite().all()


@pytest.mark.filterwarnings("ignore:Sparse")
def test_sparse():
    """The isolated node's degree ** -0.5 is infinite, and no edge reads it; then one does."""
    edges = torch.tensor([[0, 1], [1, 0]])
    w = torch.ones(3, 2, requires_grad=True)
    with explain() as report:
        for make in (lambda x: x, lambda x: x.coalesce(), lambda x: x.to_sparse_csr()):
            adjacency = make(torch.sparse_coo_tensor(edges, torch.tensor([1.0, 2.0]), (3, 3)))
            torch.sparse.mm(adjacency, w * 2).sum().backward()
        assert report.ok
        embedding = nn.Embedding(4, 2, sparse=True)
        embedding(torch.tensor([1, 2])).sum().backward()
        assert report.ok and embedding.weight.grad.is_sparse
        wrong = torch.sparse_coo_tensor(edges, torch.tensor([1.0, inf]), (3, 3))
        (torch.sparse.mm(wrong, w) * 0).sum().backward()
        spoil()
    assert told(report)[-1:] == SPOILT


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_quantized():
    with explain() as report:
        x = torch.quantize_per_tensor(torch.tensor([1.0, 2.0]), 0.1, 0, torch.qint8)
        w = torch.ones(2, requires_grad=True)
        (x.dequantize() * w).sum().backward()
        torch.fake_quantize_per_tensor_affine(w, 0.1, 0, -128, 127).sum().backward()
    assert report.ok


def test_complex():
    with explain() as report:
        z = torch.tensor([0j, 1 + 2j, complex(3e38, 1)], requires_grad=True)
        (z.abs() + (z * z.conj()).real).sum().backward()
    assert told(report) == [("overflow", "forward", "mul")]
    with explain() as report:
        z = torch.tensor([0j, 1 + 1j], requires_grad=True)
        torch.where(z.real > 0, z.log().abs(), z.abs()).sum().backward()
    assert told(report) == [("contaminated", "forward", "log")]


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_float8(dtype):
    with explain() as report:
        w = torch.ones(4, requires_grad=True)
        small = (w * 2).to(dtype)
        (small.to(torch.float32) * 3).sum().backward()
        assert report.ok
        spoil()
    assert told(report) == SPOILT


def test_float8_that_overflows():
    with explain() as report:
        x = torch.tensor([1.0, 1e6], requires_grad=True)
        (x.to(torch.float8_e5m2).to(torch.float32)).sum().backward()
    assert told(report) == [("overflow", "forward", "to")]
    assert (report.origins[0].dtype, report.origins[0].operands) == ("float8_e5m2", "1e6 > 57344")


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_float8_that_comes_in(dtype):
    data = torch.tensor([1.0, nan]).to(dtype)
    with explain() as report:
        (torch.ones(2, requires_grad=True) * data.to(torch.float32)).sum().backward()
    assert told(report) == [("bad input", "forward", "to")]
    assert report.origins[0].where == f"1 of 2 elements: [1] in {str(dtype)[6:]} of shape [2] on cpu"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_floats(dtype):
    with explain() as report:
        x = torch.full((70_000,), 1.0, dtype=dtype, requires_grad=True)
        (x * 2).float().sum().backward()
        assert report.ok
        (x[:1] * torch.tensor(0.0, dtype=dtype)).sqrt().sum().backward()
    assert told(report) == [("undefined", "backward", "sqrt")]


class Named(torch.Tensor):
    """A subclass without functions of its own."""


class Counting(torch.Tensor):
    """A subclass that looks at every function."""

    seen = 0

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        Counting.seen += 1
        return super().__torch_function__(func, types, args, kwargs)


@pytest.mark.parametrize("kind", [Named, Counting])
def test_subclasses(kind):
    def run():
        Counting.seen = 0
        x = torch.tensor([1.0, 0.0]).as_subclass(kind).requires_grad_()
        loss = torch.where(x > 0, x.log(), x * 0).sum()
        loss.backward()
        return Counting.seen, type(loss), torch.Tensor(x.grad)

    plain = run()
    with explain() as report:
        watched = run()
    assert told(report) == SPOILT
    assert plain[:2] == watched[:2] and torch.equal(plain[2].nan_to_num(7), watched[2].nan_to_num(7))


@pytest.mark.filterwarnings("ignore:It is not recommended to create a MaskedTensor")
def test_masked_tensors():
    with explain() as report:
        x = torch.masked.masked_tensor(torch.tensor([1.0, nan]), torch.tensor([True, False]), requires_grad=True)
        (x * 2).sum().backward()
        spoil()
    assert told(report)[-1:] == SPOILT


@pytest.mark.parametrize("fullgraph", [False, True])
def test_compiled(fullgraph):
    """Compiles without a break, and what comes out of it is told of as the region's."""
    torch.compiler.reset()
    torch.manual_seed(0)  # with some weights every element is positive, and log gives no NaN
    layer = nn.Linear(2, 2)

    @torch.compile(backend="eager", fullgraph=fullgraph)
    def region(x):
        return layer(x).relu().log()

    with explain() as report:
        region(torch.tensor([[1.0, 1.0], [-1.0, -1.0]])).sum().backward()
    assert report.origins and report.notes
    torch.compiler.reset()


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")
def test_scripted():
    @torch.jit.script
    def energy(x):
        return (x / x).sum()

    with explain() as report:
        x = torch.zeros(2, requires_grad=True)
        energy(x).backward()
    assert len(report) == 1 and report.origins[0].reached


def test_inference_mode():
    layer = nn.Linear(3, 2)
    with explain() as report:
        with torch.inference_mode():
            layer(torch.ones(2, 3)).softmax(-1)
            made = torch.tensor([0.0]).log()
        spoil()
    assert told(report)[-1:] == SPOILT and made.isinf()
    with explain() as report, torch.inference_mode():
        torch.tensor([0.0]).log()
    assert told(report) == [("undefined", "forward", "log")]


def test_function_transforms():
    """Nobody can look into them: the report says so."""
    with explain() as report:
        torch.func.grad(lambda x: x.square().sum().sqrt())(torch.zeros(2))
        torch.func.vmap(torch.func.grad(lambda x: x.log().sum()))(torch.zeros(2, 3))
    assert report.ok and any("torch.func" in note for note in report.notes)


def test_parameters_that_are_not_there_yet():
    with explain() as report:
        lazy = nn.LazyLinear(2)
        lazy(torch.ones(1, 3)).sum().backward()
        torch.empty(0, 3, requires_grad=True).sum().backward()
    assert report.ok


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, at):
        return torch.tensor([float(at), nan if at == 3 else 1.0]), torch.zeros(1).sqrt()


@pytest.mark.parametrize("workers", [0, 1])
def test_loaders(workers):
    layer = nn.Linear(2, 1)
    with explain() as report:
        for rows, _ in torch.utils.data.DataLoader(Rows(), 2, num_workers=workers):
            layer(rows).sum().backward()
    (origin,) = report
    assert (origin.kind, origin.operator) == ("bad input", "stack" if not workers else "linear")


SCRIPT = """
import json, sys, warnings
import torch
from torch import nn
from torch.distributed.tensor import DTensor, Shard, Replicate, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from zero_or_nan import explain
from zero_or_nan.explain.births.findings import Mistakes

Mistakes.are_raised = True
torch.set_num_threads(1)
rank, store = int(sys.argv[1]), sys.argv[2]
torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (2,))

def told(name, report):
    found = [[o.kind, o.phase, o.operator, o.rank, o.module] for o in report]
    print("result", json.dumps([name, found]), flush=True)

torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(2, 3), nn.Softplus()))
with explain() as report:
    x = torch.ones(2, 2)
    model(x).sum().backward()
    torch.zeros(1, requires_grad=True).sqrt().sum().backward()
told("DDP, clean", report)
x = torch.ones(2, 2) * (float("nan") if rank == 1 else 1)
with explain() as report:
    model(x).sum().backward()
told("DDP", report)
print("result", json.dumps(["notes", str(report)]), flush=True)
with explain() as report:
    whole = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    w = distribute_tensor(whole, mesh, [Shard(0)]).requires_grad_()
    (w * 2).sum().backward()
    grad = w.grad.full_tensor()
assert torch.equal(grad, torch.full((2, 2), 2.0)), grad
told("DTensor, clean", report)
with explain() as report:
    w = distribute_tensor(torch.tensor([[1.0, 2.0], [0.0, 4.0]]), mesh, [Shard(0)]).requires_grad_()
    w.sqrt().sum().backward()
told("DTensor", report)
torch.distributed.destroy_process_group()
"""


TOGETHER = """
import json, sys
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from zero_or_nan import explain
from zero_or_nan.explain import NotFiniteError
from zero_or_nan.explain.births.findings import Mistakes

Mistakes.are_raised = True
torch.set_num_threads(1)
rank, store = int(sys.argv[1]), sys.argv[2]
distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
good = torch.ones(2, 2)
rows = good * (float("nan") if rank == 1 else 1)
said = {}

def agrees():  # a collective that each process has to reach
    count = torch.ones(1)
    distributed.all_reduce(count)
    return count.item() == 2

def step(x):
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()

def kept(name, call):
    weights = [p.detach().clone() for p in model.parameters()]
    try:
        call()
        raised = None
    except NotFiniteError as error:
        raised = [origin.rank for origin in error.report], "see the other ranks" in str(error)
    same = all(torch.equal(p, weight) for p, weight in zip(model.parameters(), weights))
    said[name] = [raised, same, agrees()]

def watched(x):
    with explain(on_nan="raise"):
        step(x)

def alone(x):
    with explain(on_nan="raise"), model.no_sync():
        model(x).sum().backward()

kept("raise", lambda: watched(rows))
kept("raise, clean", lambda: watched(good))
kept("on_failure", lambda: explain.on_failure(step)(rows))
kept("on_failure, clean", lambda: explain.on_failure(step)(good))
kept("no_sync", lambda: alone(rows))
for name, value in said.items():
    print("result", json.dumps([name, value]), flush=True)
distributed.destroy_process_group()
"""


def test_all_processes_raise_together(tmp_path):
    """Each raises before its optimizer takes a step, and none waits for another afterwards."""
    names = ["raise", "raise, clean", "on_failure", "on_failure, clean", "no_sync"]
    first, second = results_of_two(TOGETHER, tmp_path / "store", names)
    for name in ("raise", "on_failure"):
        assert first[name] == [[[], True], True, True]
        assert second[name] == [[[1], False], True, True]
        assert first[f"{name}, clean"] == second[f"{name}, clean"] == [None, False, True]
    assert first["no_sync"][0] is None and second["no_sync"][0] == [[1], False]  # a limit that the docstring states


def test_several_processes(tmp_path):
    names = ["DDP, clean", "DDP", "DTensor, clean", "DTensor", "notes"]
    first, second = results_of_two(SCRIPT, tmp_path / "store", names)
    for rank, found in enumerate((first, second)):
        assert found["DDP, clean"] == [["undefined", "backward", "sqrt", rank, ""]]
        assert found["DTensor, clean"] == []
    assert second["DDP"] == [["bad input", "forward", "linear", 1, "0"]]
    assert first["DDP"] == [] and "see the other ranks" in first["notes"]
    assert first["notes"].startswith("a gradient is not finite, and it came from another process (one backward pass")
    assert second["DTensor"] == [["undefined", "backward", "sqrt", 1, ""]] and first["DTensor"] == []
