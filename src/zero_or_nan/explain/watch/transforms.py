"""Looks into `torch.func`: if a transform's result is not finite, plain passes compute it again, and are watched.

A transform wraps the tensors, so neither their numbers nor its passes can be watched. So each transform has a twin
here, without levels and wrappers: `grad`, `vjp` and `jacrev` become `torch.autograd.grad` with `create_graph=True`,
`jvp` and `jacfwd` become two such passes, and `vmap` a loop. The user's results stay those of the transform. A
transformed function must not have side effects, so it can run again. Of the outermost `vmap`, two samples run again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._functorch import apis, eager_transforms
from torch._functorch.vmap import _process_batched_inputs

from ... import replacing
from ...ignoring.inside import broadcast_to_and_flatten, tree_flatten, tree_map, tree_map_only, tree_unflatten
from ..births.diagnosis import Diagnosis
from ..births.findings import Findings, Mistakes, Scope, note_call
from ..births.provenance import Birth, joined
from ..program.code import Places
from ..program.rerun import RandomState, is_extra, without_warnings
from ..program.tensors import bad_numbers_of, is_compiling, node_of, not_finite, tensors_in, unseen
from .forward import TRANSFORM, Forward

_MOST_SAMPLES = 2
"""How many samples of the outermost `vmap` run again, for each result."""

_MOST_INSIDE = 128
"""The largest batch of a `vmap` inside another transform that runs again, sample by sample."""

Argnums = int | tuple[int, ...] | None


class Transforms:
    """The transforms of one watch.

    Attributes:
        is_again: whether a twin is running.
        told: by birth, the diagnoses from the passes of twins.
    """

    def __init__(
        self,
        scope: Scope,
        forward: Forward,
        findings: Findings,
        places: Places,
        mistakes: Mistakes,
    ) -> None:
        self.scope, self.forward, self.findings, self.places, self.mistakes = scope, forward, findings, places, mistakes
        self.is_again = False
        self.told: dict[Birth, Diagnosis] = {}

    def put_on(self, owner: object) -> None:
        """Replace the functions that all transforms call."""
        replacing.replace(owner, apis, "vmap_impl", partial(self._watched, _vmap))
        replacing.replace(owner, eager_transforms, "grad_and_value_impl", partial(self._watched, _grad_and_value))
        replacing.replace(owner, eager_transforms, "_vjp_with_argnums", partial(self._watched, _vjp))
        replacing.replace(owner, eager_transforms, "_jvp_with_argnums", partial(self._watched, _jvp))

    def _watched(self, twin: Callable[..., Any], transform: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():  # the compiler knows this function
                return transform(*args, **kwargs)
            if self.is_again and self.scope.is_here():
                return twin(*args, **kwargs)
            if not self.can_look():
                return transform(*args, **kwargs)

            def again(**more: Any) -> Any:
                return twin(*_apart(args), **_apart(kwargs), **more)

            repeat = _Repeat(self, again, RandomState.now())
            results: Any = self.inside(transform, *args, **kwargs)
            if twin is _vjp:
                self.look((args, kwargs), results[::2], lambda: repeat()[::2])
                return results[0], _Pull(results[1], repeat), *results[2:]
            if twin is _vmap:
                repeat = replace(repeat, twin=lambda: again(samples=_bad_samples(results, args[2])))
            self.look((args, kwargs), results, repeat)
            return results

        return run

    def begun(self, diagnosis: Diagnosis) -> Diagnosis:
        """The diagnosis. If its birth is in a transform, it gets the transform's place, where the fix belongs."""
        known = self.told.get(diagnosis.birth)
        return diagnosis if known is None else diagnosis._replace(begun=known.begun, in_transform=True)

    def can_look(self) -> bool:
        """Whether the outermost transform is about to run, in the watched code."""
        if not self.scope.is_here() or not self.forward.is_on() or self.forward.in_transform:
            return False
        return not is_extra() and not is_compiling()

    def inside(self, transform: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The result of the user's transform. Nothing is watched while it runs."""
        self.forward.in_transform = True
        try:
            return transform(*args, **kwargs)
        finally:
            self.forward.in_transform = False

    def look(self, given: Any, results: Any, repeat: Callable[..., Any]) -> None:
        """If a result is not finite, run the twin to find out where the NaN or infinity comes from."""
        with self.mistakes.noted("a transform"):
            self.findings.consume(given)
            tensors = tensors_in(results)
            place = self.places.here()
            for node in filter(None, map(node_of, tensors)):
                note_call(node, TRANSFORM, place)  # of the nodes behind it, nothing is known
            with unseen(), torch.no_grad():
                bad = [bad_numbers_of(tensor) is not None for tensor in tensors]
            if not any(bad):
                return
            try:
                twins = tensors_in(repeat())
            except Exception:  # what can be transformed may not be possible without
                twins = []
            with unseen(), torch.no_grad():
                known = [self.findings.of_bad(tensor) for tensor in twins]
                found = [each for each in known if each is not None]
                unknown = []
                for at, tensor in enumerate(tensors):
                    if bad[at] and found:
                        own = known[at] if len(known) == len(tensors) else None
                        self.findings.keep_result(tensor, own or joined(found))
                    elif bad[at]:
                        unknown.append(tensor)
                self.forward.out_of_transform(unknown, place)


@dataclass(frozen=True)
class _Repeat:
    """Runs the twin of a transform with the random numbers of before, watched, and hidden from the user's modes."""

    transforms: Transforms
    twin: Callable[[], Any]
    random: RandomState

    def __call__(self) -> Any:
        now = RandomState.now()
        self.random.put_back()
        self.transforms.is_again = True
        try:
            with self.transforms.forward.alone(), without_warnings():
                return self.twin()
        finally:
            self.transforms.is_again = False
            now.put_back()


class _Pull:
    """The function that `vjp` returns, and its twin."""

    def __init__(self, function: Callable[..., Any], forward: _Repeat) -> None:
        self.function, self.forward = function, forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        transforms = self.forward.transforms
        if transforms.is_again:  # in the twin of `vmap`
            return self.forward.twin()[1](*args, **kwargs)
        if not transforms.can_look():
            return self.function(*args, **kwargs)
        repeat = replace(self.forward, twin=lambda: self.forward.twin()[1](*args, **kwargs))
        results = transforms.inside(self.function, *args, **kwargs)
        transforms.look((args, kwargs), results, repeat)
        return results


def _apart(things: Any) -> Any:
    """The arguments with copies of tensors, into which a function may write. Of the others it is known what is bad."""

    def apart(tensor: Tensor) -> Tensor:
        return tensor.detach().clone() if bad_numbers_of(tensor) is None else tensor

    with unseen(), torch.no_grad():
        return tree_map_only(Tensor, apart, things)


# The twins: the same computation without levels and wrappers.


def _vmap(
    func: Callable[..., Any],
    in_dims: Any,
    out_dims: Any,
    randomness: str,
    chunk_size: int | None,
    *args: Any,
    samples: Sequence[int] | None = None,
    **kwargs: Any,
) -> Any:
    size, dims, flat, spec = _process_batched_inputs(in_dims, args, func)
    if samples is None and size > _MOST_INSIDE:
        raise RuntimeError(f"{size} samples would take too long")
    results = []
    for at in range(size) if samples is None else samples:
        one = [each if dim is None else each.select(dim, at) for each, dim in zip(flat, dims, strict=True)]
        results.append(func(*tree_unflatten(one, spec), **kwargs))
    leaves = [tree_flatten(each)[0] for each in results]
    spec = tree_flatten(results[0])[1]
    joint = [
        together[0] if dim is None else torch.stack(together, dim)
        for together, dim in zip(zip(*leaves, strict=True), _dims(out_dims, spec), strict=True)
    ]
    return tree_unflatten(joint, spec)


def _dims(out_dims: Any, spec: Any) -> list[int | None]:
    """By result, the dimension that counts the samples; None if the result is the same for all of them."""
    return broadcast_to_and_flatten(out_dims, spec) or []


def _bad_samples(results: Any, out_dims: Any) -> list[int]:
    """The first samples of a result of `vmap` that are not finite."""
    found: set[int] = set()
    leaves, spec = tree_flatten(results)
    with unseen(), torch.no_grad():
        for each, dim in zip(leaves, _dims(out_dims, spec), strict=True):
            if dim is not None and (here := bad_numbers_of(each)) is not None:
                rows = not_finite(here).movedim(dim, 0).flatten(1).any(1) if here.dim() > 1 else not_finite(here)
                found.update(rows.nonzero()[:_MOST_SAMPLES, 0].tolist())
    return sorted(found) or [0]


def _vjp(func: Callable[..., Any], *primals: Any, argnums: Argnums = None, has_aux: bool = False) -> Any:
    numbers = range(len(primals)) if argnums is None else (argnums,) if isinstance(argnums, int) else argnums
    places = [at % len(primals) for at in numbers]
    with torch.enable_grad():
        fresh = tuple(tree_map(_differentiable, each) if at in places else each for at, each in enumerate(primals))
        results = func(*fresh)
    results, *aux = results if has_aux else (results,)
    roots, _ = tree_flatten(results)
    chosen = fresh[places[0]] if isinstance(argnums, int) else tuple(fresh[at] for at in places)
    inputs, spec = tree_flatten(chosen)

    def pull(cotangents: Any, retain_graph: bool = True, create_graph: bool | None = None) -> Any:
        return tree_unflatten(_pulled(roots, tree_flatten(cotangents)[0], inputs), spec)

    return results, pull, *aux


def _grad_and_value(
    func: Callable[..., Any], argnums: Argnums, has_aux: bool, args: Any, kwargs: dict[str, Any]
) -> Any:
    value, pull, *aux = _vjp(partial(func, **kwargs), *args, argnums=argnums, has_aux=has_aux)
    return pull(torch.ones_like(value)), (value, *aux) if has_aux else value


def _jvp(
    func: Callable[..., Any], primals: Any, tangents: Any, argnums: Argnums, *, has_aux: bool, strict: bool = False
) -> Any:
    """The derivative of `pull(cotangents)` by the cotangents, in which it is linear, so any will do."""
    results, pull, *aux = _vjp(func, *primals, argnums=argnums, has_aux=has_aux)
    with torch.enable_grad():
        ones = tree_map(lambda each: torch.ones_like(each, requires_grad=True), results)
        slopes = pull(ones)
    inputs, spec = tree_flatten(ones)
    pushed = _pulled(tree_flatten(slopes)[0], tree_flatten(tangents)[0], inputs)
    return results, tree_unflatten(pushed, spec), *aux


def _pulled(roots: Sequence[Tensor], vectors: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
    """The gradients of the inputs. They are 0 where nothing depends on an input."""
    pairs = [(root, vector) for root, vector in zip(roots, vectors, strict=True) if root.requires_grad]
    found: Sequence[Tensor | None] = [None] * len(inputs)
    if pairs:
        outputs, given = zip(*pairs, strict=True)
        found = torch.autograd.grad(outputs, inputs, given, create_graph=True, allow_unused=True)
    return [torch.zeros_like(each) if grad is None else grad for each, grad in zip(inputs, found, strict=True)]


def _differentiable(thing: Any) -> Any:
    """A tensor by which the twin differentiates, as a view, so that what is known of its numbers stays known."""
    if not isinstance(thing, Tensor) or not (thing.is_floating_point() or thing.is_complex()):
        return thing
    return thing.view_as(thing) if thing.requires_grad else thing.detach().requires_grad_()
