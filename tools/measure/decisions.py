"""The table that says which line to write in which training setting, what the line costs, and what it does not follow.

The lines are those of the recorded setups, so a test has run each of them.
"""

from __future__ import annotations

import html
from typing import Any

from helpers import show

from ..project import Problem
from .records import prose

AS_PLAIN = "As in a plain loop."
ROWS = (
    (
        "A plain loop",
        "A training loop",
        "A check. On a bad batch, masks too.",
        "Operators without a rule: a warning names them.",
    ),
    (
        "AMP with `GradScaler`",
        "AMP with `GradScaler`",
        AS_PLAIN,
        "Nothing more. If an element that the loss uses overflows, the scaler skips the step as usual.",
    ),
    ("Gradient accumulation", "Gradient accumulation", AS_PLAIN, "Nothing more."),
    (
        "DDP",
        "DistributedDataParallel",
        "Not measured.",
        "The number of good rows, because DDP averages over ranks. Under `torch.compile`, we ran only `aot_eager`.",
    ),
    (
        "FSDP",
        "FSDP2",
        "Not measured. With a `DTensor`, each process gathers whole tensors of a layer on a bad batch.",
        "A `DTensor` or tensor parallelism if not all processes make the call.",
    ),
    ("Lightning", "Lightning", AS_PLAIN, "Strategies that do not call this method, such as DeepSpeed."),
    (
        "Accelerate",
        "Accelerate",
        AS_PLAIN,
        "DeepSpeed, Megatron-LM, LOMO, and Hugging Face's `Trainer`, which calls Accelerate itself.",
    ),
    (
        "`torch.compile`",
        "A compiled model",
        "`follow_compiled` changes inductor for the whole process. On a bad batch, the derivatives run a second time, "
        "uncompiled, and this takes more memory.",
        "Regions that were compiled before the call, and inductor before PyTorch 2.8.",
    ),
    (
        "`create_graph=True`",
        "A gradient penalty, `create_graph=True`",
        "The most of all, because the pass follows every operator, also if all numbers are finite.",
        "A second pass by plain PyTorch: call `ignoring` for both passes.",
    ),
    (
        "One GPU",
        "A training loop",
        "More than on a CPU.",
        "An LSTM: check it first. Several GPUs have no test.",
    ),
)
"""A setting, the recorded setup whose code is the line to write, the cost, and what is not followed."""


def shown(content: dict[str, Any]) -> str:
    """The table, from the record of the setups.

    Raises:
        Problem: if a row's setup is not in the record, or if no release gets it right.
    """
    code = {row["setup"]: row["code"] for row in content["rows"] if row["fixes"] and row["holds_on"]}
    if lost := [setup for _, setup, *_ in ROWS if setup not in code]:
        raise Problem(f"tools/measure/decisions.py advises setups that no recorded test holds: {', '.join(lost)}")
    rows = [
        [show.with_code(setting), f"<pre>{html.escape(code[setup])}</pre>", *map(show.with_code, words)]
        for setting, setup, *words in ROWS
    ]
    head = ["your setting", "write", "cost", "not followed"]
    table = show.table("The line to write, by setting. A bad batch has a NaN that the loss ignores.", head, rows)
    return prose(table, kind="zn-setups zn-decisions")
