"""DistributedDataParallel on two processes: its hooks see plain gradients, whichever rank has the bad rows."""

import pytest
import torch
from processes import outputs_of_two

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="this PyTorch is not distributed")

SCRIPT = """
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from zero_or_nan import ignoring

rank, file, static, unused, view, checkpointed = int(sys.argv[1]), sys.argv[2], *(word == "1" for word in sys.argv[3])
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.idle = nn.Linear(3, 4), nn.Linear(4, 1), nn.Linear(2, 2)

    def forward(self, x):
        first = lambda x: torch.tanh(self.first(x))
        return self.second(checkpoint(first, x, use_reentrant=False) if checkpointed else first(x))


def loss_of(net, rows):
    out = net(rows)
    return torch.where(rows.isfinite().all(1, keepdim=True), out.square(), 0.0).sum()


torch.manual_seed(1)
rows = torch.randn(2, 4, 3)
bad = rows.clone()
bad[1, 2:] = torch.tensor([float("nan"), float("inf"), 3e38])
net = Net()
if not unused:
    del net.idle
model = DistributedDataParallel(net, static_graph=static, find_unused_parameters=unused, gradient_as_bucket_view=view)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    optimizer.zero_grad()
    if step == 1:  # gradients accumulate without a reduction first
        with model.no_sync():
            ignoring.backward(loss_of(model, bad[rank]))
    ignoring.backward(loss_of(model, bad[rank]))
    optimizer.step()

single = Net()
reference = torch.optim.SGD(single.parameters(), lr=0.1)
for step in range(3):
    reference.zero_grad()
    loss = (single(rows[0]).square().sum() + single(rows[1, :2]).square().sum()) / 2
    (loss * (2 if step == 1 else 1)).backward()
    reference.step()

for (name, p), q in zip(net.named_parameters(), single.parameters()):
    everywhere = [torch.empty_like(p) for _ in range(2)]
    dist.all_gather(everywhere, p.detach())
    assert torch.equal(*everywhere), name
    assert torch.allclose(p, q, rtol=1e-5, atol=1e-6), (name, p, q)
    assert p.grad is None or type(p.grad) is torch.Tensor, name
assert not torch.equal(single.first.weight, Net().first.weight)
dist.destroy_process_group()
print("done")
"""


@pytest.mark.setup(
    "DistributedDataParallel",
    "model = DistributedDataParallel(model)\nloss = loss_of(model, rows)\nignoring.backward(loss)",
    "Whichever process has the bad rows; with `no_sync`, `static_graph` and checkpointing too.",
)
@pytest.mark.timeout(120)
@pytest.mark.parametrize("static, unused, view, checkpointed", [
    (0, 0, 0, 0), (1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1),
], ids=["usual", "static_graph", "find_unused_parameters", "gradient_as_bucket_view", "checkpoint"])  # fmt: skip
def test_parameters_are_equal_on_both_ranks_and_to_a_single_process(tmp_path, static, unused, view, checkpointed):
    outputs = outputs_of_two(SCRIPT, tmp_path / "store", f"{static}{unused}{view}{checkpointed}")
    assert [output.splitlines()[-1:] for output in outputs] == [["done"], ["done"]], "\n".join(outputs)
