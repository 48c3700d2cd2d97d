"""Backends that show as much of a compiled graph as `aot_eager` or inductor do, and gradients of what they compile."""

import pytest
import torch
from telling import told
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.decomposition import select_decomp_table

from zero_or_nan import ignoring

quiet_compiler = [
    pytest.mark.usefixtures("fresh_compiler"),
    *map(pytest.mark.filterwarnings, (f"ignore:{said}" for said in (
        "Your compiler for AOTAutograd", "`torch.jit:DeprecationWarning", "Skipping serial"
    ))),
]  # fmt: skip


def gradient(program, x, backward=ignoring.backward):
    """Of a program's result by x, and what `ignoring` warned of."""
    leaf = x.clone().requires_grad_()
    _, messages = told(lambda: backward(program(leaf)))
    return leaf.grad, messages


class Hidden:
    """Runs a graph, and does not show it: a wrapper would copy what is in `__dict__`."""

    __slots__ = ("__weakref__", "module")

    def __init__(self, module):
        self.module = module

    def __call__(self, *arguments):
        return self.module(*arguments)


def of_inductor(module, inputs, compiler):
    """Compile with inductor's graphs, and no compiler of C++."""
    from torch._inductor.compile_fx import _recursive_joint_graph_passes  # warns, so not at the top

    def partition(joint, inputs, **rest):
        _recursive_joint_graph_passes(joint)
        rest.pop("static_lifetime_input_indices", None)
        return min_cut_rematerialization_partition(joint, inputs, compiler="inductor", **rest)

    backend = aot_autograd(
        fw_compiler=compiler,
        partition_fn=partition,
        decompositions=select_decomp_table(),
    )
    return backend(module, inputs)


def as_inductor(module, inputs):
    """A backend that shows as little as inductor does."""
    return of_inductor(module, inputs, lambda module, inputs: Hidden(module))


def of_others(module, inputs):
    """A backend that keeps its forward graph, as `aot_eager` does, and leaves out zeros, as inductor does."""
    return of_inductor(module, inputs, lambda module, inputs: module)


def selected(x):
    return torch.where(x > 0, x.sqrt() * 2, 0.0).sum()
