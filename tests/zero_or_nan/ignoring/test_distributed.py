"""DistributedDataParallel on two processes: its hooks see plain gradients, whichever rank has the bad rows."""

import json

import pytest
import torch
from processes import results_of_two

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="this PyTorch is not distributed")

SCRIPT = """
import functools, json, sys
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from zero_or_nan import ignoring

rank, file, ways = int(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)


class Net(nn.Module):
    def __init__(self, checkpointed=False):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.idle = nn.Linear(3, 4), nn.Linear(4, 1), nn.Linear(2, 2)
        self.checkpointed = checkpointed

    def forward(self, x):
        first = lambda x: torch.tanh(self.first(x))
        return self.second(checkpoint(first, x, use_reentrant=False) if self.checkpointed else first(x))


def loss_of(net, rows):
    out = net(rows)
    return torch.where(rows.isfinite().all(1, keepdim=True), out.square(), 0.0).sum()


torch.manual_seed(1)
rows = torch.randn(2, 4, 3)
bad = rows.clone()
bad[1, 2:] = torch.tensor([float("nan"), float("inf"), 3e38])


compiled = functools.partial(torch.compile, backend="aot_eager")


def trained(checkpointed=False, compile="", **options):
    net = Net(checkpointed)
    if not options.get("find_unused_parameters"):
        del net.idle
    torch._dynamo.reset()
    if "bucket_cap_mb" in options:  # the first bucket may not be larger than the others
        dist._DEFAULT_FIRST_BUCKET_BYTES = 1
    model = DistributedDataParallel(compiled(net) if compile == "inside" else net, **options)
    model = compiled(model) if compile == "around" else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        if step == 1:  # gradients accumulate without a reduction first
            with model.no_sync():
                ignoring.backward(loss_of(model, bad[rank]))
        ignoring.backward(loss_of(model, bad[rank]))
        optimizer.step()
    return net


single = Net()
reference = torch.optim.SGD(single.parameters(), lr=0.1)
for step in range(3):
    reference.zero_grad()
    loss = (single(rows[0]).square().sum() + single(rows[1, :2]).square().sum()) / 2
    (loss * (2 if step == 1 else 1)).backward()
    reference.step()
assert not torch.equal(single.first.weight, Net().first.weight)

for name, options in ways.items():
    problems = []
    for (parameter, p), q in zip(trained(**options).named_parameters(), single.parameters()):
        everywhere = [torch.empty_like(p) for _ in range(2)]
        dist.all_gather(everywhere, p.detach())
        if not torch.equal(*everywhere):
            problems.append(f"{parameter} differs between the ranks")
        if not torch.allclose(p, q, rtol=1e-5, atol=1e-6):
            problems.append(f"{parameter} is {p.tolist()}, should be {q.tolist()}")
        if p.grad is not None and type(p.grad) is not torch.Tensor:
            problems.append(f"the gradient of {parameter} is a {type(p.grad).__name__}")
    print("result " + json.dumps([name, problems]), flush=True)
dist.destroy_process_group()
"""

WAYS = {
    "usual": {},
    "static_graph": {"static_graph": True},
    "find_unused_parameters": {"find_unused_parameters": True},
    "gradient_as_bucket_view": {"gradient_as_bucket_view": True},
    "checkpoint": {"checkpointed": True},
    "a compiled module": {"compile": "inside"},
    "a compiled module with a checkpoint": {"compile": "inside", "checkpointed": True},
    "compiled around": {"compile": "around"},
    "compiled around, with a graph for each bucket": {"compile": "around", "bucket_cap_mb": 1e-5},
}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """By way: what is wrong on each rank."""
    return results_of_two(SCRIPT, tmp_path_factory.mktemp("data parallel") / "store", WAYS, json.dumps(WAYS))


@pytest.mark.setup(
    "DistributedDataParallel",
    "model = DistributedDataParallel(model)\nloss = loss_of(model, rows)\nignoring.backward(loss)",
    "Whichever process has the bad rows; with `no_sync`, `static_graph` and checkpointing too.",
)
@pytest.mark.timeout(120)
@pytest.mark.parametrize("way", WAYS)
def test_parameters_are_equal_on_both_ranks_and_to_a_single_process(results, way):
    assert [rank[way] for rank in results] == [[], []]
