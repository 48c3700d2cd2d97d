"""A script on two processes, for the tests of what PyTorch spreads over several."""

import json
import subprocess
import sys
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

rank, file, patience, *arguments = sys.argv[1:]
rank, patience = int(rank), timedelta(seconds=int(patience))
torch.set_num_threads(1)
# Who waits for another process in vain gets an error, and what was found before is told.
dist.init_process_group("gloo", init_method=f"file://{{file}}", rank=rank, world_size=2, timeout=patience)
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
    files = [Path(f"{store}.{rank}") for rank in range(2)]
    ranks = []
    for rank, file in enumerate(files):
        with file.open("w") as told:  # a pipe would be full before the other process is read
            command = [sys.executable, "-c", BEGIN + script, str(rank), str(store), str(patience), *arguments]
            ranks.append(subprocess.Popen(command, stdout=told, stderr=subprocess.STDOUT))
    try:
        for process in ranks:
            process.wait(timeout=timeout)
    except subprocess.TimeoutExpired:
        pass
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    outputs = [file.read_text() for file in files]
    found = [
        dict(json.loads(line[7:]) for line in output.splitlines() if line.startswith("result ")) for output in outputs
    ]
    assert [sorted(rank) for rank in found] == [sorted(names)] * 2, "\n".join(outputs)
    return found
