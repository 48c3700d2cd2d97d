"""Rewrites the user's line in which a backward pass begins, with `ignoring` in place of PyTorch's function.

>>> in_line("scaler.scale(loss).backward(retain_graph=True)")
'ignoring.backward(scaler.scale(loss), retain_graph=True)'
>>> in_line("(slope,) = torch.autograd.grad(energy.sum(), x, create_graph=True)")
'(slope,) = ignoring.grad(energy.sum(), x, create_graph=True)'
>>> in_line("rows = vmap(torch.func.grad(loss_of), in_dims=(None, 0))(weights, x)")
'rows = vmap(ignoring.func.grad(loss_of), in_dims=(None, 0))(weights, x)'
"""

from __future__ import annotations

import ast

from ..program.source import parsed

_MODULES = {
    "torch.autograd": ("ignoring", ("backward", "grad")),
    "autograd": ("ignoring", ("backward", "grad")),
    "torch.func": ("ignoring.func", ("grad", "grad_and_value", "vjp", "jacrev")),
    "func": ("ignoring.func", ("grad", "grad_and_value", "vjp", "jacrev")),
}
"""PyTorch's modules, each with our module, and the functions that both modules have."""


BY_TRANSFORM = "ignoring.func.grad(f)  # in place of torch.func.grad(f)"
"""What to write if a transform computed the gradient, but the line does not contain the transform."""


def in_line(line: str) -> str | None:
    """The line with each backward pass done by `ignoring`; None if no pass is recognized in the line."""
    tree = parsed(line)
    found: list[tuple[int, int, str]] = []
    for node in ast.walk(tree or ast.Pass()):
        text = _instead(line, node) if isinstance(node, ast.Call) else None
        if text is not None:
            assert isinstance(node, ast.Call) and node.end_col_offset is not None
            found.append((node.col_offset, node.end_col_offset, text))
    if len(found) != 1:
        return None
    ((begin, end, text),) = found
    code = line.encode()
    return code[:begin].decode() + text + code[end:].decode()


def _instead(line: str, node: ast.Call) -> str | None:
    """The call of `ignoring` for a call that computes gradients; None for any other."""
    called, whole = node.func, line.encode()
    arguments = whole[called.end_col_offset : node.end_col_offset].decode()
    if isinstance(called, ast.Attribute):
        owner = ast.unparse(called.value)
        ours, names = _MODULES.get(owner, ("", ()))
        if called.attr in names:
            return f"{ours}.{called.attr}{arguments}"
        if called.attr == "backward" and owner not in ("self", "super()") and _is_of_tensor(node):
            loss = whole[called.value.col_offset : called.value.end_col_offset].decode()
            assert called.end_col_offset is not None
            for at in (each.col_offset - called.end_col_offset for each in node.keywords if each.arg == "gradient"):
                text = arguments.encode()
                arguments = f"{text[:at].decode()}grad_tensors{text[at + len('gradient') :].decode()}"
            given = arguments[1:].lstrip()
            return f"ignoring.backward({loss}{'' if given == ')' else ', '}{given}"
    is_of_func = isinstance(called, ast.Name) and called.id in ("grad", "grad_and_value", "vjp", "jacrev")
    if is_of_func and len(node.args) == 1 and not isinstance(node.args[0], ast.Call):
        return f"ignoring.func.{ast.unparse(called)}{arguments}"
    return None


def _is_of_tensor(node: ast.Call) -> bool:
    """Whether `backward` gets what a tensor's does, as opposed to that of a trainer, which gets the loss."""
    known = {"gradient", "retain_graph", "create_graph", "inputs"}
    return not node.args and all(each.arg in known for each in node.keywords)
