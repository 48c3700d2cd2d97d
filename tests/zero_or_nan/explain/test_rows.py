"""A batch with rows that are not finite: the line that leaves them out gives the gradient of the other rows alone."""

import pytest
import torch

from zero_or_nan.explain.births.arithmetic import number

TABLE = "t = torch.tensor([[1.0, 2.0, 0.5], [torch.nan, 1.0, 1.0], [3.0, 1.0, 2.0], [2.0, 5.0, 1.0]])\n"
SPLIT = "q, y = t[:, :1], t[:, 1:]\nloss = F.mse_loss(q @ x[None], y)"
APART = "q, y, t = t[:, :1].clone(), t[:, 1:].clone(), 0\n"
ROWS = {  # lines in which `t` has a bad row, and those that are written
    "a table": (SPLIT, "kept = t.isfinite().flatten(1).all(1)\nt = t[kept]\nq, y = t[:, :1], t[:, 1:]"),
    "two tensors": (
        f"{APART}w = torch.ones(1)\nloss = w * F.mse_loss(q @ x[None], y)",
        "kept = q.isfinite().flatten(1).all(1)\nq, y = q[kept], y[kept]\nw = torch.ones(1)",
    ),
    "a number of all rows": (
        "q = t[:, :1].clone()\nm = q.nan_to_num(2).mean()\ny, t = t[:, 1:].clone(), 0\n"
        "loss = F.mse_loss(q @ x[None], y) * m",
        "kept = q.isfinite().flatten(1).all(1)\nq, y = q[kept], y[kept]\nloss = F",
    ),
    "batches": (
        "batches, t = [(t[2:, :1], t[2:, 1:]), (t[:2, :1], t[:2, 1:])], 0\nfor q, y in batches:\n    p = q @ x[None]\n"
        "    loss = F.mse_loss(p, y)\n    loss.backward()",
        "kept = q.isfinite().flatten(1).all(1)\nq, y = q[kept], y[kept]\np = q @ x[None]",
    ),
    "arguments": (
        "def step(q, y):\n    loss = F.mse_loss(q @ x[None], y)\n    loss.backward()\nstep(t[:, :1], t[:, 1:])",
        "kept = q.isfinite().flatten(1).all(1)\nq, y = q[kept], y[kept]\nloss = F.mse_loss(q @ x[None], y)",
    ),
    "a branch": (
        f"if len(t) > 1:\n    t = t * 1\n{SPLIT}",
        "kept = t.isfinite().flatten(1).all(1)\nq, t, y = q[kept], t[kept], y[kept]\nloss = F.mse_loss(q @ x[None], y)",
    ),
    "written in the block": (
        "t = torch.ones(4, 2)\nt[1, 0] = torch.nan\nloss = (t @ x).square().sum()",
        "kept = t.isfinite().flatten(1).all(1)\nt = t[kept]\nloss = (t",
    ),
}
OTHERS = {
    "no row is good": "t = t * torch.nan\nloss = (t[:, :1] @ x[None] - t[:, 1:]).square().sum()",
    "another gradient is not finite": f"{APART}loss = F.mse_loss(q @ x[None], y) + (q @ x[None] * 0).sqrt().sum()",
    "another tensor has as many rows": f"{APART}loss = F.mse_loss(q @ x[None], y + torch.arange(4.0)[:, None])",
}


@pytest.mark.parametrize("name", ROWS)
def test_the_rows_are_left_out_where_the_variables_have_their_values(program, name):
    lines, written = ROWS[name]
    origin, *_ = program.origins([0.5, -1.0], TABLE + lines)
    assert origin.kind == "bad input" and f"finite gradients\n{written}" in origin.remedy, origin
    after = program.paste(origin)
    assert "loss" not in after or f"value {number(after['loss'].item())}," in origin.remedy
    lines = lines.replace("t[:2,", "t[:1,").replace("t[2:,", "t[1:,").replace("t[1, 0] = torch.nan", "t = t[:3]")
    program.write([0.5, -1.0], f"{TABLE}t = t[[0, 2, 3]]\n{lines}")
    torch.testing.assert_close(after["x"].grad, program.run()["x"].grad)


@pytest.mark.parametrize("name", OTHERS)
def test_what_does_not_run_without_the_rows_gets_advice(program, name):
    origin, *_ = program.origins([0.5, -1.0], TABLE + OTHERS[name])
    assert origin.replaces is None and "kept" not in origin.remedy, origin
