"""The line that begins a backward pass is printed with `ignoring` in it, and runs."""

import pytest
import torch
from origins import report_of

from zero_or_nan.explain.report.by_ignoring import in_line

LINES = {
    "loss.backward()": "ignoring.backward(loss)",
    "(a + b).mean().backward(retain_graph=True)": "ignoring.backward((a + b).mean(), retain_graph=True)",
    "y.backward(inputs=[f(gradient=1)], gradient=w)": "ignoring.backward(y, inputs=[f(gradient=1)], grad_tensors=w)",
    "for loss in losses: loss.backward()": "for loss in losses: ignoring.backward(loss)",
    "torch.autograd.backward([a, b], [u, v])": "ignoring.backward([a, b], [u, v])",
    "g = autograd.grad(y.sum(), x)[0] + 1": "g = ignoring.grad(y.sum(), x)[0] + 1",
    "g = vmap(grad(f), in_dims=(None, 0))(w, x)": "g = vmap(ignoring.func.grad(f), in_dims=(None, 0))(w, x)",
    "j = torch.func.jacrev(f, argnums=1)(w, x)": "j = ignoring.func.jacrev(f, argnums=1)(w, x)",
    # A trainer's, two passes in one line, what ignoring has no function for, and no whole statement.
    "self.manual_backward(loss)": None,
    "accelerator.backward(loss)": None,
    "self.backward()": None,
    "a.backward(); b.backward()": None,
    "h = torch.func.hessian(f)(x)": None,
    "loss.backward(": None,
}


@pytest.mark.parametrize("line", LINES)
def test_the_line(line):
    assert in_line(line) == LINES[line]


def test_a_long_line_has_a_number():
    def program():
        x = torch.tensor([4.0, 0.0], requires_grad=True)
        torch.where(x > 0, x.sqrt(), torch.zeros(2)).mul(1.0).sum().backward(retain_graph=False)

    (origin,) = report_of(program)
    assert origin.remedy.endswith(f".sum(), retain_graph=False)  # in place of line {origin.line}")
