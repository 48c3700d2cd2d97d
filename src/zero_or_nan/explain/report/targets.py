"""A target with gaps: the loss of the elements that are known, in the user's line.

Only the user can say whether a NaN means *not measured*. But if it does, the loss of the known elements alone is right
whatever the numbers are, if each element has its own loss. That is tried on ordinary numbers: leaving elements out may
only scale the gradient of the others, as a mean does. A correlation, or a softmax over what was left out, fails there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..births.arithmetic import number
from ..births.call import Call
from ..births.chain import Chain
from ..program.expression import closed, expression_at, with_each
from ..program.scope import can_come_before, free_name
from ..program.tensors import not_finite
from .exact import outcome, texts_of
from .trial import Advice, ordinary

_NOT_TRIED = Advice(situation="a target")


def without_gaps(chains: Sequence[Chain]) -> Advice:
    """What to write if a target has NaN.

    Args:
        chains: those of the call that compares the target with a prediction, and of the calls that used its result.
    """
    beside = [chain for chain in chains if chain.call.is_beside(chains[0].call)]
    numbers = [chain for chain in [*beside[::-1], *chains] if outcome(chain.run()).value.numel() == 1]
    found = (_advice(end, chains) for end in numbers)  # the first that is right: a sum may have other gaps, too
    return next((advice for advice in found if advice.remedy), _NOT_TRIED)


def _advice(end: Chain, chains: Sequence[Chain]) -> Advice:
    """The same, if `end` gives the loss."""
    if any(_is_used_otherwise(chain.call, end) for chain in chains):
        return _NOT_TRIED
    first, *before = chains[0].calls()
    calls = [call for call in end.calls() if call.is_beside(first) and not any(map(call.is_again, before))]
    inner = {key for key, (_, call) in end.made.items() if call in calls}
    coming = {id(tensor): tensor for call in calls for tensor in call.tensors() if id(tensor) not in inner}
    target = next(tensor for key, tensor in coming.items() if key not in end.wanted and bool(not_finite(tensor).any()))
    alike = {key: tensor for key, tensor in coming.items() if tensor.shape == target.shape}
    results = {key for key, (_, call) in end.made.items() if any(call.is_again(chain.call) for chain in chains)}
    line, gaps = _Line(calls, target, alike), target.isnan()
    filled = [outcome(end.run(given={id(target): torch.where(gaps, fill, target)})).parts for fill in _FILLS]
    if all(torch.equal(parts[0], other) for parts in zip(*filled, strict=True) for other in parts[1:]):
        why = "# the loss does not depend on {} where it is NaN: line {} with another number there."
        return line.written(why, float(filled[0][0]), {id(target): "torch.where({0}.isnan(), 0, {0})"})
    why = '# if NaN in {} means "not measured": line {} without it, on both sides.'
    for written, known in (("~{}.isnan()", ~gaps), ("~{}.isnan().any(-1)", ~gaps.any(-1))):
        value = _tried(end, alike, results, known) if known.dim() else None
        if value is not None:
            return line.written(why, value, dict.fromkeys(alike, "{0}[{1}]"), written)
    return _NOT_TRIED


_FILLS = 0.0, 1.0, -100.0


def _is_used_otherwise(call: Call, end: Chain) -> bool:
    """Whether a call takes more than the loss, and gives something else than the loss."""
    is_part = any(map(call.is_again, end.calls()))
    return not is_part and any(tensor.numel() != 1 for tensor in call.tensors())


def _tried(chain: Chain, alike: Mapping[int, Tensor], results: set[int], known: Tensor) -> float | None:
    """The loss of the known elements or rows; None if it isn't finite, or if each does not have its own loss.

    Args:
        chain: the calls up to the loss.
        alike: the target, and the tensors of its shape that are compared with it.
        results: the identities of the tensors that were computed from the comparison.
        known: the elements or rows.
    """
    try:
        before = chain.run()
        run = chain.run(given={key: tensor[known] for key, tensor in alike.items()})
        found = outcome(run, alike)
        if found.value.numel() != 1 or any(bool(not_finite(part).any()) for part in found.parts):
            return None
        for key in results:  # a mean over one dimension is another mean without the elements
            was, now = before.values[key], run.values[key]
            if was.numel() != 1 and now.shape != was[known].shape:
                return None
        for seed in range(2):
            numbers = ordinary(alike, seed, 0.9)
            whole = outcome(chain.run(torch.float64, numbers), alike).gradients.values()
            part = outcome(chain.run(torch.float64, {key: each[known] for key, each in numbers.items()}), alike)
            of_all = torch.cat([each[known].flatten() for each in whole])
            of_known = torch.cat([each.flatten() for each in part.gradients.values()])
            factor = (of_known @ of_all) / (of_all @ of_all)
            if not torch.allclose(of_known, factor * of_all, rtol=1e-6, atol=1e-12):
                return None
    except (RuntimeError, TypeError, ValueError, IndexError):  # the code does not fit the shapes
        return None
    return float(found.value)


class _Line:
    """The user's line in which a target is compared.

    Args:
        calls: those of the line that are not about the prediction or the target alone, the first one last.
        target: the target.
        alike: by identity, it and the tensors of its shape that come into the calls.
    """

    def __init__(self, calls: Sequence[Call], target: Tensor, alike: Mapping[int, Tensor]) -> None:
        self._at, self._target, self._alike = calls[-1], target, alike
        self._texts = {text: key for call in calls for thing, text in texts_of(call) if (key := id(thing)) in alike}

    def written(self, why: str, value: float, codes: Mapping[int, str], known: str = "") -> Advice:
        """The line with other code for some tensors, which has `{0}` for their own.

        Args:
            why: a comment, with `{}` for the target, and for the line.
            value: the value of the loss then.
            codes: the code, by the identity of a tensor, with `{1}` for the name of what is known.
            known: what has this name, with `{}` for the target.
        """
        expression = expression_at(self._at.place, self._at.name)
        if expression is None or expression.has_scope or not {*codes} <= {*self._texts.values()}:
            return _NOT_TRIED
        place, before = self._at.place, []
        which = free_name("known", place)
        written = {text: codes[key].format(closed(text), which) for text, key in self._texts.items() if key in codes}
        target = name = next(text for text, key in self._texts.items() if key == id(self._target))
        if not name.isidentifier():
            target = free_name("target", place)
            before = [f"{target} = {name}"]
            written[name] = codes[id(self._target)].format(target, which)
        if known:
            before.append(f"{which} = {known.format(target)}")
        line = with_each(expression.line, written)
        if line is None or before and not can_come_before(place):
            return _NOT_TRIED
        tried = f"# Tried on your numbers: value {number(value)}, and finite gradients"
        return _NOT_TRIED._replace(
            remedy="\n".join([why.format(name, self._at.place.line), tried, *before, line]),
            replaces=self._at.place.line,
        )
