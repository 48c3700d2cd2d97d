"""On other devices. The CPU is among them, where nothing is skipped, to show that the test itself is right."""

import pytest
import torch
from comparing import STEPS, compare, loss_of, network, state
from torch.nn.utils import clip_grad_norm_


def row(name, is_here):
    marks = [
        pytest.mark.setup(name, "ignoring.backward(scaler.scale(loss))", ""),
        pytest.mark.skipif(not is_here, reason="not yet tested"),
    ]
    return pytest.param(name.lower(), marks=marks)


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize(
    "device", ["cpu", row("CUDA", torch.cuda.is_available()), row("MPS", torch.backends.mps.is_available())]
)
def test_a_loop_with_mixed_precision_and_clipping(device, mixed):
    def train(ignoring, rows):
        model, rows = network().to(device), rows.to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler(device, init_scale=256.0, enabled=mixed)
        for _ in range(STEPS):
            optimizer.zero_grad()
            with torch.autocast(device, torch.float16, enabled=mixed):
                loss = loss_of(model, rows)
            ignoring.backward(scaler.scale(loss))
            scaler.unscale_(optimizer)
            clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        return state(model, loss)

    compare(train, **(dict(rtol=2e-3, atol=2e-4) if mixed else {}))
