"""Looks inside a compiled region: runs its graph again, uncompiled and on copies, and watches each function.

Nothing can watch compiled code, and the user's own code must not run twice, because it may print or count. But Dynamo's
graph of a region has only the calls of PyTorch's functions, each with its line. AOTAutograd keeps this graph, even if
the region was compiled long before the watch. All results stay those of the compiled code. The second run only shows
where they come from, and it happens only if they are not finite.

The second run uses other kernels than the compiled code, and may draw other random numbers. So its findings count only
if the same results are not finite in both runs.

Rejected alternatives: running the user's function again, uncompiled (side effects happen twice); running all code
uncompiled during a watch (the bits change); following the graph of AOTAutograd (a backend such as inductor keeps only
its backward part, and not always the lines).
"""

from __future__ import annotations

import contextlib
import re
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Interpreter, Node

from ...ignoring.inside import Edge, edge_of, forward_class, is_leaf
from ..births.call import casts_on
from ..births.findings import CALLED, REGION, Findings, region_of
from ..births.provenance import Birth, Provenance
from ..program.code import Place, Places, is_inside, is_module, modules_around, of_variables, place_at
from ..program.rerun import RandomState, without_side_effects
from ..program.tensors import is_finite, node_of, not_finite, numbers_of, unseen

UNCOMPILED = 'with torch.compiler.set_stance("force_eager"), it runs uncompiled'
RAN_AGAIN = "explain ran a compiled region a second time, uncompiled and on copies, to find the line inside of it"
FIXED_UNCOMPILED = (
    "ignoring.backward did not give finite gradients of the compiled code, which does not show what each zero in it "
    f"means. Of the same code uncompiled, it does: {UNCOMPILED}"
)
DREW_AGAIN = "the compiled region draws random numbers, and the second run may have drawn others"
NOT_INSIDE = f"explain could not look inside of a compiled region: {UNCOMPILED}, and explain sees its lines"
CAME_BEFORE = (
    "a compiled region ran before explain began, so its lines are not known: call the model inside of the block"
)
ALONE = f"the compiled code gave a NaN or an infinity that the same code does not give uncompiled: {UNCOMPILED}"

NOT_BETWEEN = (
    "a NaN or an infinity came out of code between two compiled regions, which ran uncompiled, and unwatched: "
    f"{UNCOMPILED}, and explain sees its lines"
)
NOT_REPEATED = (
    "a compiled region gave a NaN or an infinity, and when explain ran it a second time, uncompiled, it did not: the "
    f"region draws random numbers, or writes into its arguments. {UNCOMPILED}, and explain sees its lines"
)

_LINE = re.compile(r'File "(.+)", line (\d+), in (.+)')
_NAME = re.compile(r"[^.\[\]'\"]+")
_AS_THEY_ARE = ("non_alias", "unsafe_view_alias", "custom_function_view")
"""The kinds of results whose cotangents arrive at the region. All others are views, made outside the region."""


@dataclass(eq=False)
class Region:
    """One call of a compiled region.

    Attributes:
        graph: Dynamo's graph of the region.
        inputs: its arguments. Tensors are detached, but share their memory with the user's tensors.
        named: weak references to the user's tensors.
        edges: for each argument, the edge at which its gradient arrives; None if it has no gradient.
        place: the call of the outermost compiled function.
        roots: the modules among the variables of the compiled function. The paths in the graph begin with them.
        around: the modules whose calls led to the region, the outermost first.
        versions: the versions of the arguments before the call. They show whether code has written into them since.
        drawn: the state of the random numbers before the call.
        casts: the dtype to which autocast casts, by type of device; None if autocast is off.
        again: the second run; None before it, or if it failed.
    """

    graph: GraphModule
    inputs: list[Any]
    named: list[weakref.ref[Tensor] | None]
    edges: list[Any]
    place: Place
    versions: list[int]
    roots: dict[str, dict[str, Any]]
    around: list[nn.Module]
    drawn: RandomState
    casts: dict[str, torch.dtype | None]
    again: SecondRun | None = None
    has_failed: bool = False

    def module_of(self, node: Node) -> nn.Module | None:
        """The module whose code calls a function of the graph."""
        for path, *_ in reversed((node.meta.get("nn_module_stack") or {}).values()):
            with contextlib.suppress(Exception):
                scope, root, *names = _NAME.findall(path)
                inner = ".".join(name for name in names if name != "_modules")
                found = self.roots[scope][root].get_submodule(inner)
                if isinstance(found, nn.Module):
                    return found
        return self.around[-1] if self.around else None

    def place_of(self, node: Node) -> Place:
        """The user's line that calls a function of the graph; the region's line, if all other lines are in PyTorch."""
        module = self.module_of(node)
        for filename, line, function in reversed(_LINE.findall(node.meta.get("stack_trace") or "")):
            if not is_inside(filename):
                return place_at(filename, int(line), function, module)
        return self.place._replace(module=module)


class SecondRun(NamedTuple):
    """The second run of a region.

    Attributes:
        inputs: copies of the region's arguments that have a gradient.
        edges: by edge of such a copy, the edge of the argument.
        outputs: the results of the graph for these copies.
        births: the births in this run.
        drew: whether the run drew random numbers.
    """

    inputs: list[Tensor]
    edges: dict[Edge | None, Edge]
    outputs: list[Any]
    births: list[Birth]
    drew: bool


@dataclass(eq=False)
class Regions:
    """The compiled regions of one watch.

    Attributes:
        note: writes a note into the report.
        is_blind: whether a backend ran a region's graph unchanged, so that its nodes look like those of other code.
        watched: a context in which functions are watched, and hidden from the user's own modes.
        running: the region that runs now, with the frame of Dynamo's function that called it.
    """

    findings: Findings
    places: Places
    note: Callable[[str], None]
    is_blind: bool = False
    watched: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
    running: tuple[FrameType, Region] | None = None

    # While the region runs.

    def enter(self, frame: FrameType) -> None:
        """Compiled code begins. The frame belongs to Dynamo's function that calls it."""
        if self.running is not None and self.running[0] is frame:
            return
        compiled, given = frame.f_locals.get("fn"), frame.f_locals.get("args")
        graph = graph_of(compiled)
        self.is_blind = self.is_blind or isinstance(getattr(compiled, "__self__", None), GraphModule)
        if graph is not None and given is not None and torch.is_grad_enabled() and frame.f_back is not None:
            with unseen(), torch.no_grad():
                self.running = frame, self._region(graph, given, frame.f_back)

    def leave(self, frame: FrameType | None = None) -> None:
        """Compiled code ends: the code of the frame, or without a frame, all compiled code."""
        if self.running is not None and frame in (None, self.running[0]):
            self.running = None

    def saves(self, node: Any) -> None:
        """A node saves its tensors. If compiled code is running, the node belongs to its region."""
        if self.running is not None and region_of(node) is None:
            node.metadata[REGION] = self.running[1]

    def _region(self, graph: GraphModule, given: Sequence[Any], caller: FrameType) -> Region:
        kinds = {value.device.type for value in given if isinstance(value, Tensor)}
        modules = of_variables(caller, lambda pairs: [pair for pair in pairs if is_module(pair[1])])
        return Region(
            graph,
            [value.detach() if isinstance(value, Tensor) else value for value in given],
            [weakref.ref(value) if isinstance(value, Tensor) else None for value in given],
            [edge_of(value) if isinstance(value, Tensor) and value.requires_grad else None for value in given],
            self.findings.compiled_at or self.places.here(),
            [_version(value) for value in given],
            {"L": dict(modules), "G": caller.f_globals},
            modules_around(),
            RandomState.now(),
            {kind: casts_on(kind) for kind in kinds},
        )

    # Afterwards.

    def made(self, tensor: Tensor) -> Provenance | None:
        """The provenance of the NaN and infinities in a result of a region; None if it is unknown."""
        node = node_of(tensor)
        at = node
        while at is not None and region_of(at) is None and CALLED not in at.metadata and len(at.next_functions) == 1:
            at = at.next_functions[0][0]  # a view that was made outside
        here = numbers_of(tensor)
        if at is None or here is None or region_of(at) is None:
            return None
        provenance = self._made(at, here, is_direct=at is node)
        if provenance is not None:
            bad, own = not_finite(here), region_of(at).again.births
            self.findings.carry(tensor, [(birth, bad) for birth in provenance.births if birth in own])
            self.findings.provenances.keep(tensor, provenance)
        return provenance

    def _made(self, node: Any, here: Tensor, is_direct: bool) -> Provenance | None:
        again = self.again(node)
        if again is None:
            return None
        bad = not_finite(here)
        alike = [
            (torch.equal(not_finite(numbers), bad), each)
            for each in again.outputs
            if (numbers := numbers_of(each)) is not None and numbers.shape == bad.shape
        ]
        for _, output in sorted(alike, key=lambda pair: not pair[0]):
            provenance = self.findings.provenances.of(output)
            if provenance is not None:
                return provenance
        if is_direct and alike:
            self.differs(node)
        else:
            self.note(NOT_INSIDE)
        return None

    def differs(self, node: Any) -> None:
        """Note that a result was finite in the second run, but not in the compiled code."""
        region = region_of(node)
        is_the_same = not region.again.drew and region.versions == [_version(value) for value in region.inputs]
        self.note(ALONE if is_the_same else NOT_REPEATED)

    def again(self, node: Any) -> SecondRun | None:
        """The second run of the region of a node; None if it could not be run."""
        region = region_of(node)
        if region is None:
            self.note(CAME_BEFORE if self.findings.compiled_at is None else NOT_INSIDE)
            return None
        if region.again is None and not region.has_failed:
            try:
                region.again = self._run(region)
                self.note(RAN_AGAIN)
                if region.again.drew:
                    self.note(DREW_AGAIN)
            except Exception:  # the memory may be full, or the graph has what only compilers run
                region.has_failed = True
                self.note(NOT_INSIDE)
        return region.again

    def _run(self, region: Region) -> SecondRun:
        copies = [self._copy(given, edge) for given, edge in zip(region.inputs, region.edges, strict=True)]
        starts, passed = zip(*copies, strict=True) if copies else ((), ())
        births = self.findings.births
        unconsumed, in_backward = dict(self.findings.unconsumed), births.in_backward
        births.in_backward = False
        born = births.collect()
        try:
            with without_side_effects(), torch.enable_grad(), ExitStack() as stack:
                for kind, dtype in region.casts.items():
                    stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=dtype is not None))
                region.drawn.put_back()
                with self._placed(region) as at, self.watched():
                    outputs = _Run(region.graph, at).run(*passed)
                drew = region.drawn.has_changed()
        finally:
            births.stop(born)
            births.in_backward = in_backward
            self.findings.unconsumed = unconsumed
        for copy, given, known in zip(passed, region.inputs, region.named, strict=True):
            if known is not None:
                self._take_over(copy, given, known, born)
        wanted = [(start, edge) for start, edge in zip(starts, region.edges, strict=True) if edge is not None]
        edges = {edge_of(start): edge for start, edge in wanted}
        return SecondRun([start for start, _ in wanted], edges, list(outputs), born, drew)

    def _copy(self, given: Any, edge: Any) -> tuple[Any, Any]:
        """A copy of an argument, with its provenance: where its gradient ends, and what the graph gets."""
        if not isinstance(given, Tensor):
            return given, given
        with torch.no_grad():
            passed = start = given.clone()
        start.requires_grad_(edge is not None)
        has_node = edge is not None and not is_leaf(edge[0])
        if has_node:
            with torch.enable_grad():
                passed = start.clone()  # the graph may write into it, as the user may into what is no leaf
        here = numbers_of(given)
        known = None if here is None else self.findings.provenances.of(given)
        if known is None and here is not None and edge is not None and region_of(edge[0]) and not is_finite(here):
            known = self._made(edge[0], here, is_direct=True)  # it comes straight out of another region
        if known is not None:
            self.findings.provenances.keep(passed, known)
        elif here is not None and has_node and CALLED not in edge[0].metadata and not is_finite(here):
            self.note(NOT_BETWEEN)  # nobody watched the call that it comes from
        return start, passed

    def _take_over(self, copy: Tensor, given: Tensor, known: weakref.ref[Tensor], born: Sequence[Birth]) -> None:
        """Let what came in with a copy, or was written into it, be the user's tensor's."""
        for birth in born:
            if birth.tensor is not None and birth.tensor() is copy:
                birth.tensor = known
            if birth.base is not None and birth.base() is copy:
                birth.base = known
        provenance = self.findings.provenances.of(copy)
        if provenance is not None and self.findings.provenances.of(given) is None:
            for birth in provenance.births:
                if birth.kept_in is not None and birth.kept_in() is copy:
                    birth.kept_in = known
            self.findings.provenances.keep(given, provenance)

    @contextmanager
    def _placed(self, region: Region) -> Iterator[Callable[[Node], None]]:
        """While entered, calls happen at the place of the graph's node that runs."""

        def at(node: Node) -> None:
            self.places.inside = place = region.place_of(node)
            if place.module is not None and region.around:
                self.places.around.setdefault(place.module, region.around)

        before, self.places.inside = self.places.inside, region.place
        try:
            yield at
        finally:
            self.places.inside = before


class _Run(Interpreter):
    """Runs a graph, and says which node is about to run."""

    def __init__(self, graph: GraphModule, at: Callable[[Node], None]) -> None:
        super().__init__(graph)
        self.extra_traceback = False
        self._at = at

    def run_node(self, n: Node) -> Any:
        self._at(n)
        return super().run_node(n)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if getattr(target, "__name__", "") == "tag_activation_checkpoint":  # the code in a checkpoint is a graph, too
            return _Run(args[0], self._at).run(*args[1:])
        return super().call_function(target, args, kwargs)

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        value = super().get_attr(target, args, kwargs)
        return value.clone() if isinstance(value, Tensor) else value


def graph_of(compiled: Any) -> GraphModule | None:
    """Dynamo's graph behind a function that a backend compiled; None if AOTAutograd does not keep it.

    The graph is found through methods of the graph's module that the function has "just for convenience".
    """
    graph = getattr(getattr(compiled, "named_parameters", None), "__self__", None)
    is_pure = isinstance(graph, GraphModule) and next(graph.parameters(), None) is None
    return graph if is_pure else None


def _version(value: Any) -> int:
    """A number that grows whenever a tensor is written into."""
    return value._version if isinstance(value, Tensor) and not value.is_inference() else 0


def outputs_of(node: Any) -> dict[int, int]:
    """By number of a cotangent of a region's node, the number of the graph's result to which it belongs."""
    metadata = forward_class(node).metadata
    start = len(metadata.mutated_inp_runtime_indices)
    kinds = [each.output_type.name for each in metadata.output_info]
    return {start + at: at for at, kind in enumerate(kinds) if kind in _AS_THEY_ARE}
