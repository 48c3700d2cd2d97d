"""Runs the whole program in float64, by a line behind `import torch`. This is the last way that is tried.

A number may be lost in one function and be needed in another, so that no line or call alone repairs the formula. The
calls have already run in float64, and the program does the same if float64 is the dtype in which it makes its tensors.
It must make them all in this way, and it must draw no random numbers, because those of another dtype differ.
"""

from __future__ import annotations

import ast
import linecache
import re
import sys

import torch

from ..births.call import Call
from ..program.source import parsed_file
from ..program.tensors import are_finite
from .again import Program
from .conversion import has_limit_of_dtype

_OTHER_DTYPE = re.compile(
    r"float(16|32)|torch\.float\b|Float|\bhalf\b|\.float\(|finfo|numpy|\bnp\.|load|autocast|default_dtype"
    r"|\b(floor|ceil|round|trunc)\b"
)
"""Matches in a program whose tensors may have another dtype, or that reads the limits of a dtype, or rounds."""

_RANDOM = re.compile(
    r"rand|\b(normal|uniform|exponential|bernoulli|multinomial|poisson)_?\(|sample|[Dd]ropout|\bnn\.init\.\w+l_\b|xavier|"
    r"kaiming|\bnn\.(Linear|Bilinear|\w*Conv|Embedding|LSTM|GRU|RNN|MultiheadAttention|Transformer)"
)
"""Matches in a program that may draw random numbers, as the layers with weights do."""


def in_float64(failed: Call, program: Program) -> tuple[str, int, None] | None:
    """The line that imports torch, with float64 as the default dtype, and its number; None if this may be wrong."""
    tree = parsed_file(failed.place)
    imports = [] if tree is None else [each for each in tree.body if ast.unparse(each) == "import torch"]
    imports = [
        each for each in imports if linecache.getline(failed.place.filename, each.lineno).strip() == "import torch"
    ]
    if tree is None or not imports or torch.get_default_dtype() is not torch.float32:
        return None
    code = ast.unparse(tree)
    if _OTHER_DTYPE.search(code) or _RANDOM.search(code) or not _imported(tree) <= {"torch", *sys.stdlib_module_names}:
        return None
    if any(call.place.filename != failed.place.filename or has_limit_of_dtype(call) for _, call in program.calls):
        return None
    if any(each.dtype is torch.bool for _, call in program.calls for each in call.tensors()):
        return None  # what gave a mask may come out in another way
    right = program.right
    parts = [] if right is None else right.outcome.parts
    fits = are_finite([part.to(torch.complex64 if part.is_complex() else torch.float32) for part in parts])
    if right is None or not fits or not program.has_digits:
        return None
    return _LINE.format(right.told), imports[0].lineno, None


def _imported(tree: ast.Module) -> set[str]:
    """The names of the packages that a file imports, of which others may make tensors."""
    nodes = [*ast.walk(tree)]
    names = [each.name for node in nodes if isinstance(node, ast.Import) for each in node.names]
    names += [node.module or "." for node in nodes if isinstance(node, ast.ImportFrom)]
    return {name.partition(".")[0] for name in names}


_LINE = """\
# the last resort is float64 for the whole program, which is slow on most GPUs.
# Tried on your numbers: {}
import torch

torch.set_default_dtype(torch.float64)"""
