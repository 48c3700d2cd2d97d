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


# By name: lines that read data with NaN, and in which 0 is not as good as another number.
READ_OTHERWISE = {
    "a mean of the data": "z = (data - data.nanmean(0)) * x",
    "a clamp": "data = torch.tensor([[250.0, 260.0], [255.0, torch.nan]])\nz = data.clamp(230, 320) * x",
    "the smallest of the results": "z = data * x\nz = z + z.nan_to_num(9).min(0, keepdim=True).values",
    "a sample that depends on the results": "z = data * x\nz = z + torch.bernoulli((z == z) * 0.5)",
    "small numbers beside large ones": "z = data * x * torch.tensor([1e6, 1.0])\nmask[1, 1] = 1",
}


@pytest.mark.parametrize("name", READ_OTHERWISE)
def test_data_that_are_read_otherwise_are_not_left_out(program, name):
    before = "data = torch.tensor([[4.0, 5.0], [6.0, torch.nan], [7.0, 5.5]])\nmask = data.isfinite().float()\n"
    lines = f"{before}{READ_OTHERWISE[name]}\nloss = (z.square(){'' if name == 'a clamp' else ' * mask'}).sum()"
    remedies = [origin.remedy for origin in program.origins([1.0, 2.0], lines)]
    assert remedies and not any("nan_to_num(0, 0, 0)" in remedy for remedy in remedies), remedies


def test_data_that_a_mask_leaves_out_after_a_buffer_has_its_gradient(program):
    before = "data = torch.tensor([[1.0, 2.0], [torch.nan, torch.nan]])\nlength = torch.empty(2)\n"
    lines = (
        f"{before}q = data * x\nlength[:] = q.square().sum(1).sqrt()\nloss = (length * torch.tensor([1.0, 0.0])).sum()"
    )
    (origin, *_) = program.origins([1.0, 2.0], lines)
    assert "nan_to_num(0, 0, 0)" not in origin.remedy, origin.remedy


def test_rows_are_not_left_out_if_a_write_into_a_result_is_not_known(program):
    lines = "data = torch.tensor([[1.0, 2.0], [torch.nan, 2.0], [2.0, 3.0]])\ny = torch.arange(3.0)\nh = data @ x\n"
    for origin in program.origins([1.0, 2.0], f"{lines}h -= 2\nh /= 10\nloss = F.mse_loss(h, y)"):
        assert "kept" not in origin.remedy, origin.remedy
