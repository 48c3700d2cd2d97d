"""Rewrites the user's line for a target with NaN, so that it computes the loss of the known elements.

Only the user can say whether a NaN means *not measured*. But if it does, and if each element has its own loss, the loss
of the known elements alone is right for all numbers. Ordinary numbers test this: leaving out elements may only scale
the gradient of the others, as a mean does. A correlation, or a softmax over the left-out elements, fails this test.

If the program drops the NaN only after the comparison, its loss is already right, so the new line must have the same
loss. If later lines use the errors, they may count them, or ask which errors are NaN. So the line leaves the errors
unchanged, and only keeps the gradient of the NaN away from the prediction.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ...functions.numerics import numerics_of
from ...ignoring.inside import tree_map_only
from ..births.arithmetic import number
from ..births.call import Call
from ..births.chain import Chain
from ..program.source import can_come_before, closed, expression_at, free_name, reads, with_each, without_index
from ..program.tensors import are_finite
from .advice import NOTHING_TRIED, Advice
from .again import Program
from .exact import CLOSE, Outcome, outcome, texts_of
from .limits import ordinary

_NOT_TRIED = Advice(situation="a target")


def compares(name: str) -> bool:
    """Whether a function compares a prediction with a target."""
    return numerics_of(name).compares


def without_gaps(chains: Sequence[Chain], program: Program, is_dropped: bool = False) -> Advice:
    """The code to write if a target has NaN.

    Args:
        chains: those of the call that compares the target with a prediction, and of the calls that use its result.
        program: all known calls.
        is_dropped: whether the program leaves the NaN out after the comparison, so that its loss is right.
    """
    others = [each for call in program.elsewhere(chains[0].call) for each in call.tensors()]
    gaps = [each.isnan() for each in others if each.layout is torch.strided]
    if any(bool(each.all()) for each in gaps if each.numel()):
        return NOTHING_TRIED  # nothing would be left of another call of the line
    is_only = not any(bool(each.any()) for each in gaps)
    numbers = [chain for chain in chains if outcome(chain.run()).value.numel() == 1]
    beside = [chain for chain in numbers[::-1] if chain.call.is_beside(chains[0].call)]
    ends = [*beside, *(numbers[::-1] if is_dropped else numbers)]
    found = (advice for end in ends for advice in _advice(end, chains, is_dropped, is_only))
    nothing = _NOT_TRIED if compares(chains[0].call.name) else NOTHING_TRIED
    return next((advice for advice in found if advice.remedy), nothing)  # a sum may have other gaps, too


def _advice(end: Chain, chains: Sequence[Chain], is_dropped: bool, is_only: bool) -> Iterator[Advice]:
    """The ways to write the line if `end` gives the loss: a loss that is right, or one that is not finite."""
    right, comparison = outcome(end.run()).value if is_dropped else None, chains[0].call
    source = linecache.getline(comparison.place.filename, comparison.place.line)
    is_alone = end.call.is_beside(comparison) and not re.search(";|:=", source)
    others = [chain.call for chain in chains if not any(map(chain.call.is_again, end.calls()))]
    is_used_otherwise = any(tensor.numel() != 1 for call in others for tensor in call.tensors())
    if (is_alone or not is_dropped) and not is_used_otherwise:
        ways = (_known, _filled) if is_dropped else (_filled, _known)
        for way in ways if is_only else (_known,):  # another loss of the line may depend on what is filled in
            yield way(end, chains, right)
    if is_dropped:
        yield _detached(end, chains)


def _line(end: Chain, chains: Sequence[Chain]) -> list[Call]:
    """The calls up to the loss in the line of the comparison, which is the last of them."""
    first, *before = chains[0].calls()
    return [call for call in end.calls() if call.is_beside(first) and not any(map(call.is_again, before))]


def _filled(end: Chain, chains: Sequence[Chain], right: Tensor | None) -> Advice:
    """The line with a number for each NaN of the target, if the loss does not depend on this number."""
    part = _Part(end, _line(end, chains)[-1:])
    gaps = part.target.isnan()
    numbers = [torch.full_like(part.target, number) for number in (0.0, 1.0, -100.0)]
    numbers += [each.detach() for key, each in part.alike.items() if key != id(part.target)]  # an error of 0, too
    filled = [torch.where(gaps, each, part.target) for each in numbers]
    first, *others = [outcome(part.chain.run(given={id(part.target): each})).parts for each in filled]
    is_same = all(torch.equal(*pair) for other in others for pair in zip(first, other, strict=True))
    if not (is_same and are_finite(first)) or (right is not None and not torch.equal(first[0], right)):
        return _NOT_TRIED
    why = "# {} has NaN, but the loss does not depend on these elements: line {} with 0 in their place."
    return part.written(why, float(first[0]), {id(part.target): "torch.where({0}.isnan(), 0, {0})"})


def _detached(end: Chain, chains: Sequence[Chain]) -> Advice:
    """The line with a prediction that gets no gradient where the target is NaN, and has the same value."""
    part = _Part(end, _line(end, chains)[-1:])
    predictions = part.alike.keys() & part.chain.wanted
    known, found = ~part.target.isnan(), outcome(part.chain.run())
    for (key, _), gradient in found.gradients.items():
        if not are_finite(gradient[known] if key in predictions else gradient):
            return _NOT_TRIED
    why = (
        "# {0} has NaN, but the program drops these elements later: line {1} without their gradient.\n"
        "# Or select the known elements in this line, and remove the later selection"
    )
    code = "torch.where({1}.isnan(), {0}.detach(), {0})"
    return part.written(why, float(found.value), dict.fromkeys(predictions, code))


def _known(end: Chain, chains: Sequence[Chain], right: Tensor | None) -> Advice:
    """The line with the known elements of the target, and of all that is compared with it, or else the known rows.

    Rows that are known in part stay, if each element has a loss of its own.
    """
    results = {key for key, (_, call) in end.made.items() if any(call.is_again(chain.call) for chain in chains)}
    line = _line(end, chains)
    why = '# if NaN in {} means "not measured": line {} without these elements, on both sides.'
    for written in ("~{}.isnan()", "~{}.isnan().any(-1)"):
        is_row = written.endswith("(-1)")
        if is_row and (found := _without_a_loss(_Part(end, line[-1:]), right)).remedy:
            return found
        for part in (_Part(end, line[-1:]), _Part(end, line)):  # what stays in the line has the least surprises
            gaps = part.target.isnan()
            known = ~gaps.any(-1) if is_row else ~gaps
            value = _tried(part, results, known, right) if known.dim() and bool(known.any()) else None
            if value is not None:
                lost = int((~gaps & ~known[..., None]).sum()) if is_row else 0
                more = f" {lost} known elements go, too." if lost else ""
                found = part.written(why + more, value, dict.fromkeys(part.alike, "{0}[{2}]"), written)
                if found.remedy:
                    return found
    return _NOT_TRIED


def _without_a_loss(part: _Part, right: Tensor | None) -> Advice:
    """The line with a loss of 0 where the target is NaN, if rows are known in part, and the loss is a sum.

    It is a sum if the loss and its gradients are those of two parts, each with 0 for the elements of the other. A mean
    would count the elements without a loss.
    """
    gaps = part.target.isnan()
    is_partly = bool((gaps.any(-1) != gaps.all(-1)).any())
    has_mean = any(call.name == "mean" or call.name.endswith("_loss") for call in part.later())
    if right is not None or not is_partly or has_mean:
        return _NOT_TRIED
    filled = {id(part.target): part.target.nan_to_num(0)}

    def loss_of(keep: Tensor) -> Outcome:
        def masked(each: Call) -> Call:
            def run(*args: Any, **kwargs: Any) -> Any:
                result = each.func(*args, **kwargs)
                return torch.where(keep, result, 0) if result.shape == keep.shape else result * torch.nan

            return each._replace(func=run) if each.is_again(part.call) else each

        return outcome(part.chain.with_calls(masked).run(given=filled))

    is_even = (~gaps).flatten().cumsum(0).reshape(gaps.shape) % 2 == 0
    found, even, odd = (loss_of(~gaps & each) for each in (is_even | ~is_even, is_even, ~is_even))
    sums = [one + other for one, other in zip(even.parts, odd.parts, strict=True)]
    is_sum = all(torch.allclose(*pair, rtol=1e-3, atol=1e-6) for pair in zip(sums, found.parts, strict=True))
    if found.value.numel() != 1 or not are_finite(found.parts) or not is_sum:
        return _NOT_TRIED
    why = (
        '# a choice: if NaN in {} means "not measured", line {} with a loss of 0 there. If a later line\n'
        "# divides by the number of elements, it still counts these"
    )
    codes = {id(part.target): "torch.where({2}, {0}, 0)"}
    return part.written(why, float(found.value), codes, "~{}.isnan()", around="torch.where({1}, {0}, 0)")


def _tried(part: _Part, results: set[int], known: Tensor, right: Tensor | None) -> float | None:
    """The loss of the known elements or rows; None if it isn't finite or right, or if each has no loss of its own.

    The results are the identities of the tensors that were computed from the comparison. If the loss of the program is
    right, this loss has to be the same.
    """
    chain, alike = part.chain, part.alike
    try:
        before, then = chain.run(), part.without_selection(known)
        run = then.run(given={key: tensor[known] for key, tensor in alike.items()})
        found = outcome(run, alike)
        if found.value.numel() != 1 or not are_finite(found.parts):
            return None
        if right is not None and not torch.isclose(found.value, right, rtol=CLOSE.get(right.dtype, 1e-4)):
            return None
        for key in results:  # a mean over one dimension is another mean without the elements
            was, now = before.values[key], run.values[key]
            is_selected = right is not None and now.shape == was.shape
            if was.numel() != 1 and not is_selected and now.shape != was[known].shape:
                return None
        for seed in range(2):
            numbers = ordinary(alike, seed, 0.9)
            whole = outcome(chain.run(torch.float64, numbers), alike).gradients.values()
            some = outcome(then.run(torch.float64, {key: each[known] for key, each in numbers.items()}), alike)
            of_all = torch.cat([each[known].flatten() for each in whole])
            of_known = torch.cat([each.flatten() for each in some.gradients.values()])
            factor = (of_known @ of_all) / (of_all @ of_all)
            if not torch.allclose(of_known, factor * of_all, rtol=1e-6, atol=1e-12):
                return None
    except (RuntimeError, TypeError, ValueError, IndexError):  # the code does not fit the shapes
        return None
    return float(found.value)


class _Part:
    """Calls of one line, which get operands of their own: the same tensors elsewhere stay what they are.

    Attributes:
        chain: the calls up to the loss, these among them.
        alike: by identity, the operands of the target's shape.
        target: the target.
    """

    def __init__(self, end: Chain, calls: Sequence[Call]) -> None:
        ids = set(map(id, calls))
        inner = {key for key, (_, call) in end.made.items() if id(call) in ids}
        copies: dict[int, Tensor] = {}

        def own(tensor: Tensor) -> Tensor:
            return tensor if id(tensor) in inner else copies.setdefault(id(tensor), tensor.detach())

        def with_own(call: Call) -> Call:
            if id(call) not in ids:
                return call
            args, kwargs = tree_map_only(Tensor, own, (tuple(call.args), dict(call.kwargs)))
            return call._replace(args=args, kwargs=kwargs)

        self._calls = [with_own(call) for call in calls]
        wanted = {id(copy) for key, copy in copies.items() if key in end.wanted}
        self.chain = replace(end, wanted=end.wanted | wanted).with_calls(with_own)
        self.target = next(each for each in copies.values() if id(each) not in wanted and bool(each.isnan().any()))
        self.alike = {id(each): each for each in copies.values() if each.shape == self.target.shape}
        self._selection: Call | None = None

    def without_selection(self, known: Tensor) -> Chain:
        """The chain without a selection of the known elements in the line, if one call alone gets no others."""

        def plain(call: Call) -> Call:
            mask = call.args[1] if call.name == "getitem" and call.is_beside(self._calls[0]) else None
            if not isinstance(mask, Tensor) or not torch.equal(mask, known):
                return call
            self._selection = call
            return call._replace(args=(call.args[0], ...))

        return self.chain.with_calls(plain) if len(self._calls) == 1 else self.chain

    @property
    def call(self) -> Call:
        """The last of these calls."""
        return self._calls[-1]

    def later(self) -> list[Call]:
        """The calls after these, up to the loss."""
        calls = self.chain.calls()
        return calls[: next(at for at, call in enumerate(calls) if call.is_again(self.call))]

    def written(self, why: str, value: float, codes: Mapping[int, str], known: str = "", around: str = "{0}") -> Advice:
        """The line with other code for some operands; of one call, no other is changed.

        Args:
            why: a comment, with `{}` for the target, and for the line.
            value: the value of the loss then.
            codes: the code, by the identity of a tensor, with `{0}` for its own, `{1}` for the target, and
                `{2}` for the name of what is known.
            known: what has this name, with `{}` for the target.
            around: the code around the line, or around the call if it is one, with `{0}` for it, and `{1}` for the name
                of what is known.
        """
        place, name = self.call.place, self.call.name
        expression = expression_at(place, name)
        pairs = [(text, id(thing)) for call in self._calls for thing, text in texts_of(call) if id(thing) in self.alike]
        texts = dict(pairs)
        if expression is None or expression.has_scope or not {*codes, id(self.target)} <= {*texts.values()}:
            return _NOT_TRIED
        start, end = (expression.start, expression.end) if len(self._calls) == 1 else (0, None)
        before, line, after = expression.line[:start], expression.line[start:end], expression.line[end:] if end else ""
        if any(reads(line, text) > [each for each, _ in pairs].count(text) for text in texts):
            return _NOT_TRIED  # as in len(y)
        name = next((text for text, key in texts.items() if key == id(self.target)), "")
        target = name if name.isidentifier() else free_name("target", place)
        which = free_name("known", place)
        written = {text: codes[key].format(closed(text), target, which) for text, key in texts.items() if key in codes}
        lines = [] if target == name else [f"{target} = {name}"]
        if lines:
            written[name] = codes.get(id(self.target), "{0}").format(target, target, which)
        if known:
            lines.append(f"{which} = {known.format(target)}")
        if lines and not can_come_before(place):
            return _NOT_TRIED
        changed = with_each(line, written)
        if self._selection is not None:
            selection = expression_at(self._selection.place, "getitem")
            after = "" if selection is None else without_index(selection, expression.end)
        if changed is None or not after and self._selection is not None:
            return _NOT_TRIED
        lines.append(f"{before}{around.format(changed, which)}{after}")
        tried = f"# Tried on your numbers: value {number(value)}, and finite gradients"
        remedy = "\n".join([why.format(name, place.line), tried, *lines])
        return _NOT_TRIED._replace(remedy=remedy, replaces=place.line)
