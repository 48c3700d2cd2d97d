"""The backward of a compiled region. If it is contaminated, its graph is followed, operator by operator.

The compiled code runs first, as it is. If all of its results are finite, nothing else happens. Otherwise the graph that
AOTAutograd keeps runs once more, on cotangents that know their masks. Only an element that is not finite in the
compiled result is taken from there. A region that does not show what its zeros mean is not followed.

Benefit: each finite bit is the compiled one's, and a clean pass costs one check. Downside: on a contaminated pass, the
region runs twice, the second time as slowly as uncompiled code under `ignoring`. And until the compiled code ends, its
arguments stay in memory, unless they are finite and the graph gives finite numbers of them: each step would then need
more memory, and it takes time to get memory from the system.

Rejected: to run the region again, uncompiled, from its inputs. Dropout would draw another mask, and the gradient would
be finite and wrong.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from ....functions.graph import AccumulateGrad, for_each_edge, forward_class, is_region
from ....functions.record import UNKNOWN, Function
from ....masks.cotangent import Cotangent, NotFollowed, can_carry, dispatches, is_finite, mask_of, unwrap
from ....masks.mask import Mask, all_count, and_whatever_is_not_0, everywhere
from ....masks.numbers import is_number
from ....masks.watching import Comparisons
from ...engine.dispatch import has_rule
from ...engine.higher import in_forward_mode
from ...engine.plan import chooses_step
from ...engine.steps.step import Results, Step
from .meanings import ADDING, JOINING
from .region import AS_ATEN, Arguments, is_surely_finite, may_be_followed, region_of, tangents_of, users_last

aten = torch.ops.aten

NAME = "CompiledFunction"

_RESHAPED = frozenset({aten.view.default, aten._unsafe_view.default})
"""A view may meet other strides than were traced."""

_BY_STRIDES = frozenset({aten.as_strided, aten.as_strided_scatter, aten._reshape_alias})

_ADDING_A_PRODUCT = frozenset(
    {aten.addbmm, aten.addcdiv, aten.addcmul, aten.addmm, aten.addmv, aten.addr, aten.baddbmm}
)

_AMBIGUOUS = "a compiled region does not show what a zero in its backward means"
_OTHER_RESULTS = "a compiled region whose graph has other results than its code"
_NOT_SHOWN = f"{_AMBIGUOUS}; call ignoring.follow_compiled() before torch.compile, with the backend inductor"


@chooses_step
def _compiled(node: Any, function: Function) -> type[Step] | None:
    return Compiled if is_region(node) else None


class Compiled(Step):
    """The run of a compiled region's backward, which may be followed by a run of its graph on cotangents."""

    on_cotangents = False
    always_runs = True
    runs_one_derivative = False
    makes_up_zeros = False

    _here: Any = None
    """The operator of the graph that runs."""

    def begin(self, arriving: Sequence[Any]) -> Sequence[Any]:
        wanted = may_be_followed(forward_class(self.node))
        leads_to_leaves = all(type(ahead) is AccumulateGrad for ahead, _ in self.node.next_functions if ahead)
        only_if_in_doubt = leads_to_leaves and not self.owner.keep
        self._arguments = Arguments(self.node, only_if_in_doubt) if wanted else None
        return arriving

    def end(self, results: Sequence[Any], arriving: Sequence[Any]) -> Results:
        arguments = None if self._arguments is None else self._arguments.stop()
        if not self._is_in_doubt(results):
            return results, [None] * len(results)
        try:
            return self._followed(arguments, results, arriving)
        except Exception as error:
            reason = error if isinstance(error, NotFollowed) else NotFollowed(f"{type(error).__name__}: {error}")
            self.owner.failed(NAME, reason, suspected=True)
            return results, [None] * len(results)
        finally:
            self._here = self._comparisons = None
            self._compared: dict[int, Any] = {}

    def abandon(self) -> None:
        if self._arguments is not None:
            self._arguments.stop()

    def _is_in_doubt(self, results: Sequence[Any]) -> bool:
        """True if masks are needed: a result is not finite, or a zero may be multiplied by NaN or infinity ahead."""
        own = [result for result in results if isinstance(result, Tensor)]
        if self.owner.keep or not (all(map(is_surely_finite, own)) or is_finite(own)):
            return True
        ahead = zip(results, self.node.next_functions, strict=True)
        inside = [result for result, (node, _) in ahead if result is not None and type(node) is not AccumulateGrad]
        return not all(bool(result.all()) for result in inside) and not self.owner.is_safe_ahead(self.node)

    # The graph, on cotangents.

    def _followed(self, arguments: list[Any] | None, results: Sequence[Any], arriving: Sequence[Any]) -> Results:
        """The results and masks, by a run of the graph.

        Raises:
            NotFollowed: if the graph is not there, or if its results are not those of the compiled code.
        """
        if torch.is_grad_enabled() or in_forward_mode():
            raise NotFollowed("a compiled region has no second derivative")
        if self._arguments is not None and self._arguments.were_finite:
            self._arguments.hold_from_now_on()
            raise NotFollowed("a compiled region that gave finite numbers until now; the next pass can follow it")
        forward = forward_class(self.node)
        region = region_of(forward)
        if not region.shows:
            raise NotFollowed(_NOT_SHOWN)
        if arguments is None:
            raise NotFollowed("a compiled region whose arguments are not known")
        places = tangents_of(forward)
        first = len(arguments) - len(places)
        given = [node for node in region.module.graph.nodes if node.op == "placeholder"]
        if len(given) != len(arguments) or first < 0:
            raise NotFollowed("a compiled region whose graph has other arguments than its code")
        for number, place in enumerate(places, first):
            value, sent = arguments[number], arriving[place]
            if type(value) is not Tensor or sent is not None and (value.shape, value.dtype) != (sent.shape, sent.dtype):
                raise NotFollowed("a compiled region whose graph has other cotangents than its code")
            mask = everywhere(False, value) if sent is None else self.masks[place]
            arguments[number] = Cotangent(value, mask, self)
        with torch.no_grad(), torch._C._DisableAutocast():
            self._comparisons = Comparisons(first_alone=False)
            self._comparisons.start()
            try:
                return self._run(region, arguments, results)
            finally:
                self._comparisons.stop()

    def _run(self, region: Any, arguments: list[Any], results: Sequence[Any]) -> Results:
        """Run the graph. Each of its results is merged with the compiled one as soon as it is there.

        Takes the arguments out of their list, so that each is freed as soon as no operator needs it.
        """
        self._region, self._compared, self._flagged = region, {}, False
        self._dtypes = {value.dtype for value in arguments if isinstance(value, Tensor)}
        edges = self._edges(region, results)
        values, masks = list(results), [cast(Mask, None)] * len(results)
        known: dict[Any, Any] = {}
        arguments.reverse()
        for node, last in users_last(region.module):
            if node.op == "placeholder":
                known[node] = self._counted(node, arguments.pop())
            elif node.op == "get_attr":
                known[node] = operator.attrgetter(node.target)(region.module)
            else:
                self._here = node
                args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), known.__getitem__)
                known[node] = self._call(node.target, args, kwargs)
            for edge in edges.get(node, ()):
                values[edge], masks[edge] = self._merged(results[edge], known[node])
            for argument in last:
                del known[argument]
        return values, masks

    def _edges(self, region: Any, results: Sequence[Any]) -> dict[Any, list[int]]:
        """By the operator of the graph, the edges that get its result."""
        edges: dict[Any, list[int]] = {}
        returned = for_each_edge(self.node, region.module.graph.output_node().args[0])
        for edge, (node, exact) in enumerate(zip(returned, results, strict=True)):
            if isinstance(exact, Tensor):
                if not isinstance(node, torch.fx.Node):
                    raise NotFollowed(_OTHER_RESULTS)
                edges.setdefault(node, []).append(edge)
        return edges

    def _call(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Run one operator."""
        packet = getattr(target, "overloadpacket", None)
        if packet in _BY_STRIDES and any(map(_is_cotangent, args)):
            raise NotFollowed(f"a compiled region with {target.name()}, which reads the memory of a cotangent")
        if packet in ADDING or packet in JOINING:
            self._check_terms(packet, args)
        elif any(map(_is_cotangent, args)) and _may_write_zeros(target, args):
            self._undecided()
        if target in _RESHAPED:
            target = aten.reshape.default
        if getattr(target, "namespace", "") == "prims":
            target = AS_ATEN.get(target._schema.name, target)
        if self.owner.count is not None:
            self.owner.count.see_operator(NAME, partial(target, **kwargs), args)
        result = target(*args, **kwargs)
        if self._region.picks(self._here) and any(map(_is_cotangent, args)):
            factor = next(arg for arg in args if not _is_cotangent(arg))
            result = torch.where(factor != 0, result, 0.0)
        result = self._counted(self._here, result)
        if isinstance(result, Tensor):
            self._dtypes.add(result.dtype)
        if (
            packet in Comparisons.COMPARING
            or packet in Comparisons.JOINING
            and all(id(part) in self._compared for part in args)
        ):
            self._compared[id(result)] = result
        return result

    def _counted(self, node: Any, result: Any) -> Any:
        """A result; if a mark says that it is not decided, all of it counts."""
        if self._region.marks.get(node) is not UNKNOWN or not _is_cotangent(result):
            return result
        self._undecided()
        return Cotangent(unwrap(result), None, self)

    def _check_terms(self, packet: Any, args: Any) -> None:
        """Report a plain tensor beside a cotangent. The derivative is linear, so it is a zero, perhaps an ignored one.

        In a derivative that selects, a zero that nothing else uses is the derivative's own.
        """
        terms, nodes = (each[0] if packet in JOINING else each[:2] for each in (args, self._here.args))
        plain = [node for node, term in zip(nodes, terms, strict=True) if not _is_cotangent(term)]
        if not plain or len(plain) == len(terms):
            return
        if packet in JOINING and all(self._region.owns(self._here, node) for node in plain):
            return
        self._undecided()

    def _merged(self, exact: Tensor, result: Any) -> tuple[Tensor, Mask]:
        """The compiled result where it is finite, elsewhere that of the graph; and the mask."""
        if not isinstance(result, Tensor) or exact.shape != result.shape or dispatches(exact):
            raise NotFollowed(_OTHER_RESULTS)
        if not _agree(exact, unwrap(result), self._dtypes):
            raise NotFollowed("a compiled region whose graph computes other numbers than its code")
        if not _is_cotangent(result):
            if can_carry(exact):
                self._undecided()
            return exact, None
        if not is_number(exact.sum()):
            exact = torch.where(exact.isfinite(), exact, unwrap(result))
        mask = mask_of(result)
        return exact, None if mask is None or all_count(mask) else and_whatever_is_not_0(mask, exact)

    # What the rules ask.

    @property
    def is_anothers(self) -> bool:  # type: ignore[override]
        """Whether the derivative that runs is not known."""
        return self._function() is None

    @property
    def selects(self) -> bool:
        """Whether a zero that the derivative writes means "not selected". If that is not known, it counts."""
        function = self._function()
        if function is None or not isinstance(function.selects, bool):
            self._undecided()
            return False
        return function.selects

    def _function(self) -> Function | None:
        """The record of the forward function whose derivative runs."""
        return None if self._here is None else self._region.meaning(self._here)

    def where_unordered(self, condition: Tensor) -> Mask:
        """The elements at which a condition compared a NaN. If the graph did not make the condition: all of them."""
        function = self._function()
        if function is None or not function.compares or self._comparisons is None:
            return None
        if id(condition) not in self._compared:
            self._undecided()
            return everywhere(True, condition)
        return self._comparisons.where_unordered(condition)

    def _undecided(self) -> None:
        """Report a zero that counts because nothing shows that it is ignored."""
        if not self._flagged:
            self._flagged = True
            self.owner.failed(NAME, NotFollowed(_AMBIGUOUS), suspected=True)


def _may_write_zeros(operator: Any, args: Any) -> bool:
    """True if a result may have zeros of which nothing shows what they mean."""
    if getattr(operator, "namespace", "") != "aten":
        return False
    packet = operator.overloadpacket
    if packet in _ADDING_A_PRODUCT:
        return not _is_cotangent(args[0])
    if packet is aten.mul and isinstance(args[1], (int, float)):  # so decompositions write what was not selected
        return args[1] == 0
    return not has_rule(operator)


def _is_cotangent(thing: Any) -> bool:
    return type(thing) is Cotangent


def _agree(exact: Tensor, followed: Tensor, dtypes: Iterable[torch.dtype]) -> bool:
    """True if two results agree where both are finite. If not, the graph's arguments are not those of the code.

    `dtypes`: those of all numbers in the graph. Compiled code may round less often to a narrow one.
    """
    finite = exact.isfinite() & followed.isfinite()
    if not (exact.is_floating_point() or exact.is_complex()) or not bool(finite.any()):
        return True
    size, difference = (each.abs().masked_fill_(~finite, 0).amax().item() for each in (exact, exact - followed))
    floating = [dtype for dtype in dtypes if dtype.is_floating_point or dtype.is_complex]
    tolerance = max(torch.finfo(dtype).eps for dtype in (torch.float32, *floating)) ** 0.5
    return bool(difference <= tolerance * size)
