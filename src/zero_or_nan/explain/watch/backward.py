"""Watches a backward pass: checks the gradients that each node passes on, and follows each NaN to its targets.

If the graph holds a number that could contaminate a gradient, `ignoring` first runs the same pass. This shadow changes
no `.grad`. It shows which elements the loss ignored, and whether the gradient exists.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter

from ...ignoring.inside import (
    Edge,
    edge_of,
    graph_from,
    is_leaf,
    is_region,
    leaves_of,
    mark_formula,
    mark_formulas,
    not_compiled,
    unsafe_nodes,
)
from ..births.call import Call, come_from, come_in
from ..births.diagnosis import Diagnosis, Events, Inside, Reached, Shadow, Verdict, diagnose, with_hidden
from ..births.findings import (
    CALLED,
    Carried,
    Findings,
    Mistakes,
    can_run_again,
    carried_by,
    note_derivative,
    region_of,
    share_readable,
)
from ..births.nodes import Callers, NodeBirths, is_element_by_element, only_passes_on
from ..births.provenance import Birth, Provenance, joined
from ..program.code import Place, place_here, users_frame
from ..program.tensors import (
    are_finite,
    are_finite_at_once,
    bad_in,
    bad_numbers_of,
    bad_of,
    beyond,
    in_several_processes,
    is_finite,
    numbers_of,
    unseen,
)
from .regions import NOT_INSIDE, Regions, SecondRun, outputs_of
from .shadow import Sandbox, shadow_of


class Request(NamedTuple):
    """A request to PyTorch's engine: what to differentiate, with which vectors, and with respect to which inputs.

    Without inputs, the pass is with respect to all leaves. If it `accumulates`, the gradients go into `.grad`. If it
    `keeps_graph`, another pass may follow. If it `is_recorded`, the gradient may be differentiated again. `place` is
    the user's line.
    """

    roots: Sequence[Any]
    vectors: Sequence[Any]
    inputs: Sequence[Any]
    accumulates: bool
    keeps_graph: bool = False
    place: Place | None = None
    is_recorded: bool = False


class Backward:
    """A run of PyTorch's engine. In a reentrant checkpoint, it is a part of an outer run.

    Attributes:
        events: the events of this pass, and of the passes inside it.
        shadow: the outcome of the same pass run by `ignoring`, if it was needed and could be run.
        arrived: by edge, the provenance of the gradient that arrives there, if it is not finite.
        carried: by node, the elements of its outputs that were not finite in the forward pass.
        holders: by edge of each leaf to whose `.grad` this pass adds, whether `.grad` is one more finite number in the
            sum.
        callers: the calls that the nodes come from.
        births: the births at the nodes.
    """

    def __init__(
        self,
        request: Request,
        findings: Findings,
        regions: Regions,
        sandbox: Sandbox,
        mistakes: Mistakes,
        outer: Backward | None,
    ) -> None:
        self.request, self.outer = request, outer
        self.findings, self.regions, self.sandbox, self.mistakes = findings, regions, sandbox, mistakes
        self.graph = graph_from(request.roots)
        self.carried: dict[Any, Carried] = {}
        roots = {edge_of(root) for root in request.roots}
        self.events: Events = Events(roots, self.carried) if outer is None else outer.events
        self.shadow: Shadow | None = None
        self.arrived: dict[Edge, Provenance] = {}
        self.holders: dict[Edge, bool] = {} if outer is None else dict(outer.holders)
        self.callers = Callers(self.graph, findings)
        self.births = NodeBirths(findings, self.events, self.callers, self.carried, findings.births.collect())
        self._handles: list[Any] = []
        self._is_aside = False

    @contextmanager
    def aside(self) -> Iterator[None]:
        """While entered, the hooks of this run, and of the runs around it, do nothing."""
        before, self._is_aside = self._is_aside, True
        try:
            with nullcontext() if self.outer is None else self.outer.aside():
                yield
        finally:
            self._is_aside = before

    # Before the engine runs.

    def begin(self) -> None:
        """Check the inputs of the pass, run its shadow if necessary, and put a hook on each node."""
        self._check_roots()
        self._check_vectors()
        if self.request.accumulates:
            self._check_holders()
        own = self.findings.births.own
        for node in self.graph if self.findings.carries else ():
            if carried := carried_by(node):
                self.carried[node] = {at: own(pairs, itemgetter(0)) for at, pairs in carried.items()}
        if self.outer is None:
            mark_formulas(self.graph)
            unsafe = unsafe_nodes(self.graph, is_contaminated=bool(self.carried))
            if unsafe is not None:
                self._cast_shadow(unsafe)
        for node in self.graph:
            if not is_leaf(node):
                self._handles.append(node.register_hook(partial(self._look, node)))
                if is_region(node):
                    self._handles.append(node.register_prehook(self._begin_compiled))

    @not_compiled
    def _begin_compiled(self, arriving: Any) -> None:
        self.findings.in_compiled = not self._is_aside

    def _check_roots(self) -> None:
        for root in self.request.roots:
            provenance = self.findings.of_bad(root)
            is_watched = self.findings.provenances or self.findings.compiled_at is not None
            if provenance is None and is_watched and self.outer is None and bad_of(root) is not None:
                provenance = self.regions.made(root)
            if provenance is not None:
                if self.outer is None:
                    self.events.reached.append(Reached("the loss", None, provenance))
                    self.births.loss = provenance
                edge = edge_of(root)
                if edge is not None:
                    self.arrived[edge] = provenance

    def _check_vectors(self) -> None:
        for root, vector in zip(self.request.roots, self.request.vectors, strict=False):
            here, edge = bad_numbers_of(vector), edge_of(root)
            if here is not None and edge is not None:
                known = self.findings.provenances.of(vector)
                birth = known.births[0] if known is not None and known.births else come_in(vector, here, _call_here())
                self.arrived[edge] = Provenance({birth: ("backward",)})

    def _check_holders(self) -> None:
        """Check each `.grad` that this pass adds to: it may not be finite already."""
        asked = {edge_of(tensor) for tensor in self.request.inputs}
        holders = {(node, 0): leaf for node, leaf in leaves_of(self.graph) if not asked or (node, 0) in asked}
        grads = {
            edge: leaf.grad for edge, leaf in holders.items() if leaf.grad is not None and edge not in self.holders
        }
        if not grads:
            return
        # Other processes, and the leaf's hooks, may change a gradient before PyTorch adds it to `.grad`.
        alone = not in_several_processes()
        self.holders.update({edge: alone and not holders[edge]._backward_hooks for edge in grads})
        if are_finite_at_once(grads.values()):
            return
        birth: Birth | None = None
        for edge, grad in grads.items():
            here = bad_numbers_of(grad)
            if here is None:
                continue
            self.holders[edge] = False
            provenance = self.findings.provenances.of(grad) or self.findings.secondhand.of(grad)
            if provenance is None:
                birth = birth or come_from("in .grad before this pass", grad, here, _call_here(), held=True)
                provenance = Provenance({birth: ()})
                self.findings.provenances.keep(grad, provenance)
            self.arrived[edge] = provenance

    def _cast_shadow(self, unsafe: Sequence[Any]) -> None:
        keep = [(node, 0) for node in unsafe if not is_leaf(node)]
        keep += [(node, output) for node, carried in self.carried.items() for output in carried]
        keep += [(node, output) for node in self.graph if region_of(node) is not None for output in outputs_of(node)]
        roots, vectors, inputs, *_ = self.request
        with self.sandbox.entered(recomputes=not all(map(can_run_again, self.graph))) as undoing:
            self.shadow = shadow_of(roots, vectors, inputs, self.graph, keep, unsafe, undoing)
        self.events.lacks_shadow = self.shadow is None
        if self.shadow is not None and not self.shadow.is_complete:
            self.events.is_partial = any(map(is_region, self.graph))
        if self.shadow is not None and self.shadow.is_complete:
            for node, at, bad in self.shadow.made:
                self.births.note_hidden(node, at, bad)
            self.shadow.made.clear()

    @not_compiled
    def _look(self, node: Any, results: Sequence[Tensor | None], arriving: Sequence[Tensor | None]) -> None:
        """The hook of a node."""
        if self._is_aside:
            return
        self.findings.in_compiled = False
        with unseen():
            try:
                bad: dict[int, Tensor] = {}
                for at, result in enumerate(results):
                    if type(result) is Tensor and result.dtype is torch.float32 and result.layout is torch.strided:
                        try:  # if its memory is asked for, PyTorch does not add the next gradient to it in place
                            total = result.sum().item()
                        except RuntimeError:  # on the meta device, or nested
                            continue
                        elements = None if total - total == 0 else bad_in(result)
                    else:
                        elements = bad_of(result)
                    if elements is not None:
                        bad[at] = elements
                if bad:
                    self._not_finite(node, results, arriving, bad)
                self.births.inside.clear()
                if torch.is_grad_enabled():
                    self._recorded(node, results)
                    mark_formula(node, results, arriving, self.graph)
            except Exception as error:
                self.mistakes.note(str(node.name()), error)

    # While the engine runs.

    def _recorded(self, node: Any, results: Sequence[Any]) -> None:
        """A gradient that can be differentiated again comes from the same call as its node."""
        for result in results:
            if result is not None and result.grad_fn is not None and CALLED not in result.grad_fn.metadata:
                caller = self.callers.of(node)
                note_derivative(result.grad_fn, *caller)

    def _not_finite(
        self, node: Any, results: Sequence[Any], arriving: Sequence[Any], found: Mapping[int, Tensor]
    ) -> None:
        """Follow what a node passes on that is not finite: some of its results, each with the elements."""
        provenances, came = self._arriving(node, arriving)
        caller = self.callers.of(node)
        share_readable(node, caller.node)
        inside = self._inside(node, arriving, results) if is_region(node) else {}
        is_innocent: bool | None = None
        passed_on: Provenance | None = None
        for at, ((ahead, slot), result) in enumerate(zip(node.next_functions, results, strict=False)):
            bad = found.get(at)
            if bad is None or ahead is None:
                continue
            if at in inside:
                self._arrive((ahead, slot), result, inside[at])
                continue
            made: Tensor | None = bad
            if is_element_by_element(node, arriving, bad, came):
                if came is not None:
                    made = beyond(bad, came)
                    if made is None and not provenances:
                        made = bad
            else:
                if is_innocent is None:
                    is_innocent = bool(provenances) and (
                        self.births.add_nothing(node, caller, provenances, bad) or only_passes_on(node, arriving)
                    )
                if is_innocent:
                    made = None
            births = [] if made is None else self.births.of(node, caller, arriving, at, result, made)
            if births:
                self._arrive((ahead, slot), result, joined(provenances, caller.name, births))
            else:
                passed_on = passed_on or joined(provenances, caller.name)  # the results share it
                self._arrive((ahead, slot), result, passed_on)

    def _arrive(self, edge: Edge, value: Tensor, provenance: Provenance) -> None:
        before = self.arrived.get(edge)
        if before is not None:
            provenance = joined([before, provenance])
        self.arrived[edge] = provenance
        self.findings.provenances.keep(value, provenance)

    def _arriving(self, node: Any, arriving: Sequence[Any]) -> tuple[list[Provenance], Tensor | None]:
        """The provenances of the cotangents that are not finite, and the elements of the last of them."""
        provenances: list[Provenance] = []
        came: Tensor | None = None
        for at, value in enumerate(arriving):
            here = numbers_of(value)
            bad = None if here is None else bad_in(here)
            if here is not None and bad is not None:
                came, edge = bad, (node, at)
                provenance = self.arrived.get(edge) or self.findings.provenances.of(value)
                provenance = provenance or self.births.of_sum(edge, here, self.holders.get(edge, False))
                if provenance is not None:
                    provenances.append(provenance)
        return provenances, came

    # Inside of a compiled region.

    def _inside(self, node: Any, arriving: Sequence[Any], results: Sequence[Any]) -> dict[int, Provenance]:
        """By number of a result, where it comes from inside of a compiled region, as far as that is known.

        A pass through the second run of the region finds it out. Its roots are the elements that count outside.
        """
        again = self.regions.again(node)
        if again is None:
            return {}
        roots: list[Tensor] = []
        vectors: list[Tensor] = []
        came: dict[Edge | None, Provenance] = {}
        ignored: list[Provenance] = []
        numbers = outputs_of(node)
        for at, value in enumerate(arriving):
            if value is None:
                continue
            output = again.outputs[numbers[at]] if at in numbers else None
            if output is None or not output.requires_grad:
                self.regions.note(NOT_INSIDE)
                return {}
            counts = None if self.shadow is None else self.shadow.masks.get((node, at))
            if counts is None or counts.shape != value.shape:
                counts = torch.ones(value.shape, dtype=torch.bool, device=value.device)
            with torch.enable_grad():
                roots.append(output[counts])
            vectors.append(value.detach()[counts])
            known = self.arrived.get((node, at)) or self.findings.provenances.of(value)
            if known is not None and not are_finite(vectors[-1]):
                came[edge_of(roots[-1])] = known
            if known is not None and not are_finite(value.detach()[~counts]):
                ignored.append(known)
        inner = self._through(roots, vectors, again, came)
        found: dict[int, Provenance] = {}
        for at, (edge, result) in enumerate(zip(node.next_functions, results, strict=False)):
            if are_finite(result):
                continue
            reached = [each.provenance for each in inner.events.reached if again.edges.get(each.edge) == edge]
            if reached or ignored:
                found[at] = joined([*ignored, *reached])
            else:
                self.regions.differs(node)
        return found

    def _through(
        self, roots: Sequence[Tensor], vectors: Sequence[Tensor], again: SecondRun, came: dict[Edge | None, Provenance]
    ) -> Backward:
        """The pass through the second run of a region."""
        request = Request(roots, vectors, again.inputs, accumulates=False)
        inner = Backward(request, self.findings, self.regions, self.sandbox, self.mistakes, None)
        inner.births.loss = self.births.loss
        inner.begin()
        inner.arrived.update((edge, provenance) for edge, provenance in came.items() if edge is not None)
        try:
            with self.sandbox.entered(recomputes=False):
                gradients = torch.autograd.grad(roots, again.inputs, vectors, retain_graph=True, allow_unused=True)
        finally:
            inner.let_go()
        inner.end(gradients)
        is_alone = not self.events.is_partial or sum(map(is_region, self.graph)) == 1
        own = {*again.births, *(born.birth for born in inner.events.born.values())}
        for each in diagnose(inner.events, inner.shadow, {}, inner.callers.senders):
            birth, (kind, fixed, is_sure, _) = each.birth, each.verdict
            known = self.events.inside.get(birth)
            if birth in own and (known is None or known.verdict.kind == "contaminated"):
                is_sure = is_sure and (is_alone or kind == "contaminated")
                self.events.inside[birth] = Inside(Verdict(kind, fixed, is_sure), each.tie)
        return inner

    # After the engine has run.

    def let_go(self) -> None:
        """Remove the hooks from the nodes."""
        self.findings.in_compiled = False
        self.findings.births.stop(self.births.inside)
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def end(self, results: Any) -> bool:
        """Find out which gradients were reached.

        Returns:
            Whether a gradient is not finite although, as far as is known, nothing in this process made it so.
        """
        is_from_elsewhere = False
        for target, edge, gradient in self._targets(results):
            here = numbers_of(gradient)
            if here is None:
                continue
            is_bad = not is_finite(here)
            provenance = self.arrived.get(edge) or self.findings.provenances.of(gradient)  # a hook may have made it
            if provenance is None and is_bad and self.births.loss is None:
                provenance = self.births.of_sum(edge, here, self.holders.get(edge, False))
            if provenance is not None and is_bad:
                if self.outer is None or isinstance(target, Parameter):  # other leaves are a checkpoint's own
                    self.events.reached.append(Reached(target, edge, provenance))
                self.findings.provenances.keep(gradient, provenance)
                continue
            is_from_elsewhere = is_from_elsewhere or is_bad and not self.events.reached
            if self.births.loss is not None:
                self.findings.secondhand.keep(gradient, self.births.loss)
        return is_from_elsewhere

    def diagnosed(self, known: Mapping[Birth, Verdict]) -> list[Diagnosis]:
        """The births that reached the loss or a gradient, and hidden births. `known` has verdicts of earlier passes."""
        found = diagnose(self.events, self.shadow, known, self.callers.senders)
        found = with_hidden(found, self.events, self.shadow, self.births.hidden)
        return [each._replace(begun=self.request.place, is_recorded=self.request.is_recorded) for each in found]

    def _named(self, target: Any, edge: Edge) -> Tensor | str:
        """What a gradient was asked for. An edge of the graph is named by its leaf, or by its function."""
        if isinstance(target, Tensor):
            return target
        leaf: Tensor | None = getattr(edge[0], "variable", None)
        return f"the gradient at {self.callers.of(edge[0]).name}" if leaf is None else leaf

    def _targets(self, results: Any) -> Iterator[tuple[Tensor | str, Edge, Tensor]]:
        """The leaves, or the tensors that gradients were asked for, with their edges and gradients."""
        inputs = self.request.inputs
        if inputs and not self.request.accumulates:
            for tensor, gradient in zip(inputs, results or (), strict=False):
                edge = edge_of(tensor)
                if edge is not None and isinstance(gradient, Tensor):
                    yield self._named(tensor, edge), edge, gradient
            return
        for node, leaf in leaves_of(self.graph):
            if leaf.grad is not None:
                yield leaf, (node, 0), leaf.grad


def _call_here() -> Call:
    return Call(None, "backward", place_here(users_frame()))
