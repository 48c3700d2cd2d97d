"""A script on two processes, for the tests of what PyTorch spreads over several."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch

import zero_or_nan

needs_two = [
    pytest.mark.skipif(not torch.distributed.is_available(), reason="this PyTorch is not distributed"),
    pytest.mark.timeout(200),
]

BEGIN = f"""
import contextlib, json, math, os, sys, warnings
from datetime import timedelta
sys.path.insert(0, {str(Path(zero_or_nan.__file__).parents[1])!r})
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, loss_parallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from zero_or_nan import explain, ignoring
from zero_or_nan.ignoring.engine import passes

store, patience, *arguments = sys.argv[1:]
patience = timedelta(seconds=int(patience))
torch.set_num_threads(1)
rank = next((rank for rank in range(2) if not os.fork()), None)  # what is imported is shared
if rank is None:
    for _ in range(2):
        os.wait()
    os._exit(0)
os.dup2(os.open(f"{{store}}.{{rank}}", os.O_WRONLY | os.O_CREAT), 1)  # a pipe would be full before it is read
os.dup2(1, 2)
# Who waits for another process in vain gets an error, and what was found before is told.
dist.init_process_group("gloo", init_method=f"file://{{store}}", rank=rank, world_size=2, timeout=patience)
mesh = init_device_mesh("cpu", (2,))


def tell(name, found):
    print("result " + json.dumps([name, found]), flush=True)
"""


def results_of_two(script, store, names, *arguments, timeout=90, patience=1800):
    """Run a script in two processes, which `tell(name, found)`; what each of the two found, by name.

    Args:
        store: a file to meet at.
        timeout: the seconds after which a process is killed. What it has printed by then shows where it was.
        patience: the seconds for which a process waits for the other one.
    """
    command = [sys.executable, "-c", BEGIN + script, str(store), str(patience), *arguments]
    process = subprocess.Popen(command, start_new_session=True)
    try:
        process.wait(timeout=timeout)
    except subprocess.TimeoutExpired:
        pass
    finally:
        with suppress(ProcessLookupError):  # all have ended
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    outputs = [file.read_text() if file.exists() else "" for file in (Path(f"{store}.{rank}") for rank in range(2))]
    found = [
        dict(json.loads(line[7:]) for line in output.splitlines() if line.startswith("result ")) for output in outputs
    ]
    assert [sorted(rank) for rank in found] == [sorted(names)] * 2, "\n".join(outputs)
    return found
