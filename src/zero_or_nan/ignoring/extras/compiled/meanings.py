"""What a zero in the backward graph of a compiled region means.

The graph alone does not show it: `where(condition, g, 0)` is the derivative of `where`, which selects, and also a part
of the derivative of `std`, which writes 0 by convention. The forward function decides. AOTAutograd notes the number of
the autograd node on each operator, in the backward and in the forward graph. So the forward operator with the same
number names the function, and the function has a record.

Inductor keeps neither the forward graph nor the numbers. `follow_compiled` puts two passes into inductor, which write
what a zero means into the backward graph itself, as a *mark*: a chain of `aten.alias` behind the operator that writes
the zero. The length of the chain is the mark. Inductor removes each alias before it generates code, so the compiled
numbers have the same bits. A chain of operators is what survives PyTorch's caches: names and metadata don't.

The compiler merges equal operators. If two functions meant their zero differently, the merged operator has two chains,
and is not decided.
"""

from __future__ import annotations

import copy
import hashlib
import math
import warnings
from typing import Any

import torch

from ....functions.graph import NODES
from ....functions.record import FUNCTIONS, UNKNOWN, Function

aten = torch.ops.aten

_BY_LETTERS = {name.lower(): name for name in NODES}
"""The names of the nodes in lower case: the operator `max_pool2d_with_indices` has nodes `MaxPool2DWithIndices`."""

_INTO_VIEWS = frozenset({"as_strided_scatter", "copy", "diagonal_scatter", "select_scatter", "slice_scatter"})
"""What becomes of a write into a view. Its node `CopySlices` has no forward operator of its own."""

_WRITING_ZEROS = frozenset(
    getattr(aten, name)
    for name in (
        "_unsafe_index_put _unsafe_masked_index_put_accumulate as_strided_scatter cat complex constant_pad_nd "
        "copy diagonal_scatter fill index_add "
        "index_copy index_fill index_put masked_fill masked_scatter mul new_zeros put scatter scatter_add "
        "select_scatter slice_scatter stack where zeros_like"
    ).split()
)
"""The operators whose rules ask what a zero means."""

JOINING = frozenset({aten.cat, aten.stack})
ADDING = frozenset({aten.add, aten.sub, aten.rsub})

_LARGEST = frozenset({aten.amax, aten.amin})

PICKED = Function(selects=True)
"""What stands for the function of a product that `picks`."""

_MARKS = {
    3: Function(selects=True),
    4: Function(selects=True, compares=True),
    5: Function(),
    6: Function(derivative=lambda node, cotangents: ()),
    7: UNKNOWN,
    8: None,
    9: PICKED,
}
"""The marks, by the length of the chain: what the record of the function says. No graph has such chains otherwise.

7 is for a term to which a zero is added: whether the sum counts is not known. 8 says nothing about its operator, but
that the graph was marked: no zero was left out of it.
"""

_MARK = "zero_or_nan"
"""The key of a mark in the metadata of an operator, until the second pass."""

_VERSION = "3"
"""Changes with what the passes do. With the records, it is a part of the keys of PyTorch's caches."""

_is_followed = False


def is_followed() -> bool:
    """True if inductor marks what it compiles."""
    return _is_followed


def follow_compiled() -> None:
    """Let inductor keep what `ignoring` needs to follow the regions that it compiles.

    Call it before `torch.compile` compiles: regions that were compiled earlier stay as they are. It adds two passes to
    inductor for the whole process, in `torch._inductor.config.joint_custom_pre_pass` and `joint_custom_post_pass`.
    Compiled code computes the same bits as without them. It also sets `torch._functorch.config.donated_buffer` to
    False: the compiled backward then leaves its arguments as they are, so that `ignoring` can use them again. PyTorch's
    own backends that keep their forward graph, such as "aot_eager", need none of this. The backend of another package
    is followed only if it runs inductor's passes.

    Warns:
        UserWarning: if PyTorch is older than 2.8. Nothing is set then, and what inductor compiles is not followed.

    Source:
        `torch._inductor.custom_graph_pass` describes such passes.

    >>> follow_compiled()  # doctest: +SKIP
    """
    global _is_followed
    if torch.__version__ < "2.8":  # compared as versions
        warnings.warn(
            f"ignoring.follow_compiled() needs PyTorch 2.8 or newer, and this is {torch.__version__}: "
            "what inductor compiles is not followed",
            stacklevel=2,
        )
        return
    from torch._functorch import config as functorch
    from torch._inductor import config

    from .inductor import Passes

    if not _is_followed:
        functorch.donated_buffer = False
        fingerprint = _fingerprint()
        config.joint_custom_pre_pass = Passes(config.joint_custom_pre_pass, _note, fingerprint)
        config.joint_custom_post_pass = Passes(config.joint_custom_post_pass, _mark, fingerprint)
        _is_followed = True


def _fingerprint() -> str:
    """What the marks depend on: the passes and the records."""
    facts = [
        (name, record.selects if isinstance(record.selects, bool) else None, record.compares, bool(record.derivative))
        for name, record in FUNCTIONS.items()
        if isinstance(name, str)
    ]
    return f"zero_or_nan {_VERSION} {hashlib.sha256(repr(sorted(facts, key=str)).encode()).hexdigest()}"


def _note(graph: Any) -> None:
    """The first pass: what each zero means, while the graph is as it was traced."""
    functions = functions_in(graph)
    follows = _following(graph)
    for node in graph.nodes:
        packet = getattr(node.target, "overloadpacket", None)
        if node.op != "call_function" or node.meta.get("partitioner_tag") != "is_backward":
            continue
        if packet in ADDING:  # inductor leaves out a zero that is added, and with it, that it may count
            terms = [term for term in node.args[:2] if isinstance(term, torch.fx.Node)]
            if not follows.issuperset(terms):
                for term in follows.intersection(terms):
                    term.meta[_MARK] = 7
        function = functions.get(number_of(node))
        if function is None or not isinstance(function.selects, bool):
            continue
        if function.derivative is not None and function is not FUNCTIONS["Addmm"]:
            node.meta[_MARK] = 6
        elif function.selects and picks(node):
            node.meta[_MARK] = 9
        elif packet in _WRITING_ZEROS and _is_whole(node):
            node.meta[_MARK] = 5 if not function.selects else 4 if function.compares else 3


def _following(graph: Any) -> set[Any]:
    """The nodes that depend on a cotangent."""
    found: set[Any] = set()
    for node in graph.nodes:
        if node.op == "placeholder" and node.name.startswith("tangents") or not found.isdisjoint(node.all_input_nodes):
            found.add(node)
    return found


def _is_whole(node: Any) -> bool:
    """True if each constant that an operator joins with others belongs to the same derivative."""
    packet = node.target.overloadpacket
    if packet is aten.mul:
        return any(each.meta["val"].dtype is torch.bool for each in node.all_input_nodes if "val" in each.meta)
    joined = node.args[0] if packet in JOINING else ()
    return all(is_own(node, part) for part in joined if not part.all_input_nodes and part.op != "placeholder")


def _mark(graph: Any) -> None:
    """The second pass, after inductor has removed what does nothing: put the marks in."""
    order = {node: number for number, node in enumerate(graph.nodes)}
    tangents = [node for node in graph.nodes if node.op == "placeholder" and node.name.startswith("tangents")]
    for tangent in tangents[:1]:
        tangent.meta.setdefault(_MARK, 8)  # always: an operator that is marked may end up in the forward graph
    for node in list(graph.nodes):
        last, users = node, list(node.users)
        if not isinstance(node.meta.get("val"), torch.Tensor):
            continue
        first = min(users, key=order.__getitem__, default=None)
        for _ in range(node.meta.pop(_MARK, 0)):
            # That of a cotangent comes where it is used first: earlier, it would be in the middle of forward.
            with graph.inserting_before(first) if node.op == "placeholder" else graph.inserting_after(last):
                alias = graph.call_function(aten.alias.default, (last,))
            alias.meta = copy.copy(node.meta)
            last = alias
        if last is not node:
            for user in users:
                user.replace_input_with(node, last)


def picks(node: Any) -> bool:
    """True if an operator multiplies by zeros into which a number was scattered.

    So the decomposed derivative of `nll_loss` picks the class of each row. In a function that selects, the zeros mean
    "not selected". A zero in its other factor, the weights of the classes, does not.
    """
    if getattr(node.target, "overloadpacket", None) is not aten.mul:
        return False
    factors = [factor for factor in node.args if isinstance(factor, torch.fx.Node)]
    return any(factor.target is aten.scatter.value and factor.args[3] != 0 for factor in factors)


def marks_in(graph: Any) -> dict[Any, Function | None]:
    """The records that the marks of a graph stand for, by the operator that is marked."""
    found = {}
    for node in graph.nodes:
        chain = [node]
        while len(chain[-1].users) == 1 and _is_alias(*chain[-1].users):
            chain += chain[-1].users
        is_branching = any(map(_is_alias, chain[-1].users))  # merged by the compiler, and marked in different ways
        if not _is_alias(node) and (is_branching or len(chain) > 1):
            found[node] = UNKNOWN if is_branching else _MARKS.get(len(chain) - 1, UNKNOWN)
    return found


def _is_alias(node: Any) -> bool:
    return node.target is aten.alias.default


def number_of(node: Any) -> int:
    """The number of the autograd node whose derivative calls an operator; -1 if it is not known.

    Releases that mark the user's own derivative give its operators another tag.
    """
    number: int = node.meta.get("seq_nr", -1) if node.meta.get("partitioner_tag") == "is_backward" else -1
    return number


def is_own(node: Any, constant: Any) -> bool:
    """True if a constant that an operator joins with others belongs to the derivative that calls the operator."""
    own = constant.meta.get("seq_nr") == node.meta.get("seq_nr") and not constant.all_input_nodes
    return own and len(constant.users) == 1 and list(node.args[0]).count(constant) == 1


def functions_in(ahead: Any) -> dict[int, Function]:
    """The records of the functions in a forward graph, or in a graph of forward and backward, by number.

    The first operator with a number made the node. Later ones have no derivative, and show the number of the last node.
    """
    found: dict[int, Function | None] = {}
    largest = {
        node.meta.get("seq_nr") for node in ahead.nodes if getattr(node.target, "overloadpacket", None) in _LARGEST
    }
    for node in ahead.nodes:
        number = node.meta.get("seq_nr")
        if node.op != "call_function" or number is None or node.meta.get("partitioner_tag") == "is_backward":
            continue
        made = node.meta.get("original_aten", node.target)
        name = getattr(getattr(made, "overloadpacket", made), "__name__", "")
        if name in _INTO_VIEWS:
            return {}
        if number not in found:
            of_user = [str(entry[0]) for entry in node.meta.get("source_fn_stack", ())]
            known = bool(of_user) and not any("autograd" in entry for entry in of_user)
            found[number] = _record(name, node, number in largest) if known else None
    return {number: function for number, function in found.items() if function is not None}


def _record(name: str, node: Any, is_of_largest: bool) -> Function | None:
    """The record of an operator; None if no node has its name, or if it is not known which function it came from."""
    if name == "linalg_vector_norm":  # its record is for orders of inf
        if node.target is not aten.linalg_vector_norm.default:
            return None if is_of_largest else Function()
        if len(node.args) < 2 or math.isfinite(node.args[1]):
            return Function()
    of_node = _BY_LETTERS.get(name.removesuffix("_forward").replace("_", ""))
    return None if of_node is None else FUNCTIONS.get(of_node, UNKNOWN)
