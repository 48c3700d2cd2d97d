"""The backward graph of a compiled region, and the arguments that it ran on.

AOTAutograd keeps the backward of each region as a graph of PyTorch's operators, because compiled autograd needs it.
What a zero in it means is in `meanings`: a backend of PyTorch that keeps the forward graph, as `aot_eager` does, shows
it.
Inductor compiles the forward graph away, and shows it only through the marks of `follow_compiled`. Without them nothing
is guessed, and the region is not followed: inductor leaves out a zero that is added, and with it, that an element was
used.
"""

from __future__ import annotations

import contextlib
import operator
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FunctionType, MethodType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.nn import Parameter

from ....functions.graph import forward_class
from ....functions.record import FUNCTIONS, Function
from ....masks.cotangent import NotFollowed, can_carry
from ....masks.in_place import OpOverload
from ....masks.numbers import all_finite
from .meanings import PICKED, functions_in, is_followed, is_own, marks_in, number_of, picks

aten = torch.ops.aten

_ON_NUMBERS = frozenset(vars(operator)[name] for name in operator.__all__) | {
    torch.sym_float, torch.sym_int, torch.sym_max, torch.sym_min,
}  # fmt: skip


class Region(NamedTuple):
    """A compiled region.

    Attributes:
        module: its backward. The graph's arguments are those of `_backward_impl`; the cotangents come last.
        functions: the record of the forward function, by the number of its autograd node; None if the forward graph is
            not there.
        marks: the record of the forward function, by the operator of the graph that has a mark.
    """

    module: GraphModule
    functions: Mapping[int, Function] | None
    marks: Mapping[Any, Function | None]

    def meaning(self, node: Any) -> Function | None:
        """The record of the function whose derivative calls an operator of the graph; None if it is not known."""
        return self.marks.get(node) if self.functions is None else self.functions.get(number_of(node))

    @property
    def shows(self) -> bool:
        """Whether the graph shows what its zeros mean."""
        return self.functions is not None or bool(self.marks)

    def picks(self, node: Any) -> bool:
        """True if an operator multiplies by zeros that mean "not selected"."""
        if self.functions is None:
            return self.marks.get(node) is PICKED
        function = self.meaning(node)
        return function is not None and function.selects is True and picks(node)

    def owns(self, node: Any, constant: Any) -> bool:
        """True if a constant belongs to the derivative that calls an operator. The compiler merges equal constants."""
        if self.functions is None:  # a mark has checked this before anything was merged
            return node in self.marks and not constant.all_input_nodes
        return is_own(node, constant)


_regions: weakref.WeakKeyDictionary[type, Region | str] = weakref.WeakKeyDictionary()
_functions: weakref.WeakKeyDictionary[type, Mapping[int, Function] | None] = weakref.WeakKeyDictionary()


def functions_of(forward: Any) -> Mapping[int, Function] | None:
    """The records of a region's functions; None if the backend does not keep its forward graph, as `aot_eager` does.

    Only backends of PyTorch itself are known to run both graphs as they were traced. Another one may run passes of
    inductor first, and leave out zeros.
    """
    if forward not in _functions:
        ahead = _graph_inside(getattr(forward, "compiled_fw", None))
        _functions[forward] = None if ahead is None else functions_in(ahead)
    return _functions[forward]


def may_be_followed(forward: Any) -> bool:
    """True if the graph of a region can be followed, and shows what its zeros mean."""
    if functions_of(forward) is None and not is_followed():
        return False
    try:
        return region_of(forward).shows
    except NotFollowed:
        return False


def region_of(forward: Any) -> Region:
    """The compiled region behind a Function of AOTAutograd.

    Raises:
        NotFollowed: if the graph is missing, or has operators that can't be followed.
    """
    found = _regions.get(forward)
    if found is None:
        try:
            found = _region(forward)
        except NotFollowed as error:
            found = str(error)
        _regions[forward] = found
    if isinstance(found, str):
        raise NotFollowed(found)
    return found


def _region(forward: Any) -> Region:
    info: Any = getattr(forward, "_lazy_backward_info", None)
    module = getattr(info, "bw_module", None)
    if module is None and hasattr(info, "bw_module_fn"):
        try:
            module = info.bw_module_fn()
        except Exception as error:  # PyTorch can't read each graph back that it put into its cache
            raise NotFollowed(f"a compiled region whose graph can't be read from PyTorch's cache: {error}") from error
    if not isinstance(module, GraphModule):
        raise NotFollowed("a compiled region without its backward graph")
    functions = functions_of(forward)
    region = Region(module, functions, marks_in(module.graph) if functions is None else {})
    for node in module.graph.nodes:
        _check(node, region)
    return region


def _check(node: Any, region: Region) -> None:
    """Refuse an operator that draws random numbers, writes into a tensor, or is not one of PyTorch's."""
    target: Any = node.target
    if node.op != "call_function" or target in _ON_NUMBERS:
        return
    if not isinstance(target, OpOverload):
        raise NotFollowed(f"a compiled region with {getattr(target, '__name__', target)}")
    if target.namespace != "aten" and target._schema.name not in {*AS_ATEN, *_OF_NO_COTANGENT}:
        raise NotFollowed(f"a compiled region with {target._schema.name}")
    if target._schema.is_mutable or _draws(node):
        raise NotFollowed(f"a compiled region with {target._schema.name}, which can't be run twice")
    function = region.meaning(node)
    if function is not None and function.derivative is not None and function is not FUNCTIONS["Addmm"]:
        # `Addmm` has one for beta=0 alone. In a region, the base then counts.
        raise NotFollowed("a compiled region with a function whose derivative ignoring replaces")


def _draws(node: Any) -> bool:
    """True if an operator draws random numbers. Attention without dropout draws none, and may be computed again."""
    if torch.Tag.nondeterministic_seeded not in node.target.tags:
        return False
    places = {argument.name: place for place, argument in enumerate(node.target._schema.arguments)}
    if "dropout_p" not in places:
        return True
    given = node.args[places["dropout_p"] :]
    return bool((given[0] if given else node.kwargs.get("dropout_p", 0.0)) != 0.0)


def _graph_inside(compiled: Any) -> Any:
    """The forward graph, if the backend is one of PyTorch's that only wrap it into functions; else None."""
    if getattr(compiled, "__module__", None) != "torch._dynamo.backends.debugging":
        return None
    stack, seen = [compiled], set()
    while stack:
        thing = stack.pop()
        if isinstance(thing, GraphModule):
            return thing.graph
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, MethodType):
            stack.append(thing.__self__)
        elif isinstance(thing, FunctionType):
            stack += vars(thing).values()
            for cell in thing.__closure__ or ():
                with contextlib.suppress(ValueError):  # empty
                    stack.append(cell.cell_contents)
    return None


# What inductor's decompositions call, in operators that have rules.

AS_ATEN: dict[str, Callable[..., Any]] = {
    "prims::convert_element_type": lambda a, dtype: aten._to_copy(a, dtype=dtype),
    "prims::fma": lambda a, b, c: aten.add(aten.mul(a, b), c),
    "prims::rev": aten.flip.default,
}
"""By name: inductor registers some of its operators only when it is imported."""

_OF_NO_COTANGENT = frozenset(
    f"prims::{name}"
    for name in ("iota", "_low_memory_max_pool_offsets_to_indices", "_low_memory_max_pool2d_offsets_to_indices")
)
"""They get sizes or the places of the largest elements."""


def tangents_of(forward: Any) -> list[int]:
    """Which of the cotangents that arrive at the region its graph gets, in order.

    Raises:
        NotFollowed: if the graph gets other arguments, too.
    """
    metadata = forward.metadata
    if (
        forward.maybe_subclass_metadata is not None
        or metadata.num_backward_tokens
        or metadata.is_rng_op_functionalized
        or getattr(metadata, "num_graphsafe_rng_states", 0)
    ):
        raise NotFollowed("a compiled region with tensor subclasses, tokens or random numbers")
    written, outputs = metadata.mutated_inp_runtime_indices, metadata.output_info
    inputs = [metadata.input_info[i] for i in written]
    found = [i for i, each in enumerate(inputs) if each.mutates_data and each.requires_grad]
    found += [
        len(written) + i
        for i, each in enumerate(outputs)
        if each.output_type.name in ("non_alias", "unsafe_view_alias", "custom_function_view")
        and issubclass(each.raw_type, Tensor)
        and getattr(each, "requires_grad_for_backward", each.requires_grad)
    ]
    start = len(written) + len(outputs)
    return found + list(range(start, start + metadata.num_intermediate_bases))


_FINITE_OF_FINITE = frozenset(
    """
    _log_softmax_backward_data _scaled_dot_product_flash_attention_for_cpu_backward _softmax_backward_data
    _to_copy _unsafe_view add addmm alias avg_pool2d_backward bmm cat clone constant_pad_nd convolution_backward
    detach embedding_dense_backward eq expand full ge gelu_backward gt hardtanh_backward le leaky_relu_backward lt
    max_pool2d_with_indices_backward mm mul native_batch_norm_backward native_dropout_backward
    native_layer_norm_backward ne neg ones_like permute reshape select select_backward select_scatter sigmoid_backward
    silu_backward slice slice_backward slice_scatter split squeeze sub sum t tanh_backward threshold_backward transpose
    unsqueeze view where zeros zeros_like
    """.split()
)
"""The operators that give finite numbers for finite numbers, if nothing overflows."""

_finite_of_finite: weakref.WeakKeyDictionary[type, bool] = weakref.WeakKeyDictionary()
_known_finite: weakref.WeakKeyDictionary[type, set[int]] = weakref.WeakKeyDictionary()
"""For each region, the addresses of the parameters that were finite in a pass."""


def gives_finite_of_finite(forward: Any) -> bool:
    """True if the backward of a region gives finite numbers for finite arguments, if nothing overflows."""
    found = _finite_of_finite.get(forward)
    if found is None:
        try:
            nodes = list(region_of(forward).module.graph.nodes)
        except NotFollowed:
            nodes = []
        names = [
            getattr(getattr(node.target, "overloadpacket", None), "__name__", "")
            for node in nodes
            if node.op == "call_function" and node.target not in _ON_NUMBERS
        ]
        found = _finite_of_finite[forward] = bool(names) and _FINITE_OF_FINITE.issuperset(names)
    return found


class Arguments:
    """Notes the arguments of a compiled backward, until `stop`. Reading them elsewhere would run saved-tensor hooks.

    Args:
        node: the node of the region.
        only_if_in_doubt: whether the arguments are needed only if a result is not finite. If they are finite, and the
            results will be, they are not held: the compiled code frees them as it goes, and uses their memory again.
    """

    _lock = threading.Lock()

    def __init__(self, node: Any, only_if_in_doubt: bool = False) -> None:
        self.node = node
        self.only_if_in_doubt = only_if_in_doubt
        self.values: list[Any] | None = None
        self.were_finite = False
        self.forward = forward_class(node)
        with self._lock:
            before = vars(self.forward).get("_backward_impl")
            if before is None:
                return
            if not isinstance(before, _Noting):
                before = _Noting(before)
                self.forward._backward_impl = before
            before.wanted[node] = self

    def note(self, values: Sequence[Any]) -> None:
        """Keep the arguments. Compiled code may write into those that are donated to it, so copy these.

        A backend that keeps its graphs runs them as they are, and writes into none.
        """
        if self.only_if_in_doubt and gives_finite_of_finite(self.forward) and self._are_finite(values):
            self.were_finite = True
            return
        donated = () if functions_of(self.forward) is not None else self.forward.metadata.bw_donated_idxs or ()
        self.values = [
            value.clone() if place in donated and isinstance(value, Tensor) else value
            for place, value in enumerate(values)
        ]

    def _are_finite(self, values: Sequence[Any]) -> bool:
        """True if the arguments are finite. A parameter that was finite in an earlier pass is not read again.

        Parameters are often half of the memory. If one is no longer finite, a result may not be: results are checked.
        """
        known = _known_finite.setdefault(self.forward, set())
        leaves = (getattr(ahead, "variable", None) for ahead, _ in self.node.next_functions)
        parameters = {leaf.data_ptr() for leaf in leaves if type(leaf) is Parameter}
        read_before = known & parameters
        for value in values:
            address = value.data_ptr() if type(value) in (Tensor, Parameter) else None
            if address in read_before:
                continue
            if not is_surely_finite(value):
                return False
            known |= parameters & {address}
        return True

    def hold_from_now_on(self) -> None:
        """Hold the arguments of this region in later passes, because finite ones gave a number that is not finite."""
        _finite_of_finite[self.forward] = False

    def stop(self) -> list[Any] | None:
        """The arguments; None if the backward did not run, or if this release runs it in another way."""
        with self._lock:
            noting = vars(self.forward).get("_backward_impl")
            if isinstance(noting, _Noting):
                noting.wanted.pop(self.node, None)
                if not noting.wanted:
                    self.forward._backward_impl = noting.before
        values, self.values = self.values, None
        return values


def is_surely_finite(value: Any) -> bool:
    """True if one sum shows that a tensor is finite, or if it holds no floating-point numbers."""
    if not isinstance(value, Tensor) or not (value.is_floating_point() or value.is_complex()):
        return True
    return can_carry(value) and all_finite(value)


class _Noting:
    """A compiled backward that notes its arguments for the steps that want them."""

    def __init__(self, before: Any) -> None:
        self.before = before
        self.wanted: dict[Any, Arguments] = {}

    def __call__(self, node: Any, values: Any) -> Any:
        arguments = self.wanted.get(node)
        if arguments is not None:
            arguments.note(values)
        return self.before.__get__(None, type(self))(node, values)


def users_last(module: GraphModule) -> Iterator[tuple[Any, list[Any]]]:
    """The graph's operators in order, each with the nodes whose results no operator needs afterwards."""
    *nodes, _ = module.graph.nodes  # the last one only gathers the results
    last = {argument: node for node in nodes for argument in (node, *node.all_input_nodes)}
    for node in nodes:
        yield node, [argument for argument in (*node.all_input_nodes, node) if last[argument] is node]
