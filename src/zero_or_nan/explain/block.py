"""The watch as users have it: `with explain() as report`."""

from __future__ import annotations

from typing import Literal

from .failure import on_failure
from .recorder import Recorder
from .report import NotFiniteError, Report


class explain:  # noqa: N801
    """Watch a block of code, and tell where a NaN or an infinity was born that reached the loss or a gradient.

    Results, gradients and random numbers are the same bits as without it. Where the graph holds a number that could
    contaminate, the pass is run once more by `ignoring` beforehand. Hooks of leaves don't see that, nor do hooks that
    were registered in the block; those that were registered on the inside of a graph before it run twice. So does code
    in a checkpoint, whose writes to tensors are put back, and in the user's own `autograd.Function`. A compiled region
    is watched from outside, and what `torch.func` transforms is not looked into.

    Args:
        on_nan: "report" has the block go on; "raise" raises `NotFiniteError` as the backward pass ends, before an
            optimizer can take a step. Without a backward pass in the block, as the block ends.

    Raises:
        ValueError: when `on_nan` is neither of the two words.
        RuntimeError: when one and the same watch is entered again inside of its block.

    Example:
        >>> import torch
        >>> from zero_or_nan import explain
        >>> x = torch.tensor([1.0, 100.0], requires_grad=True)
        >>> with explain() as report:
        ...     loss = torch.where(x < 50, x.exp(), torch.zeros(2)).sum()
        ...     loss.backward()
        >>> (origin,) = report.origins
        >>> origin.kind, origin.operator, origin.operands
        ('contaminated', 'exp', 'exp(100) > 3.4e38; in backward 0 × inf')
    """

    on_failure = staticmethod(on_failure)

    def __init__(self, on_nan: Literal["report", "raise"] = "report") -> None:
        if on_nan not in ("report", "raise"):
            raise ValueError(f'on_nan={on_nan!r} is not known; use "report" to go on, or "raise"')
        self.on_nan = on_nan
        self._recorder: Recorder | None = None

    def __enter__(self) -> Report:
        if self._recorder is not None:
            raise RuntimeError("this watch is on already: make another with explain()")
        report = Report()
        self._recorder = Recorder(report, self.on_nan == "raise")
        self._recorder.begin()
        return report

    def __exit__(self, kind: type[BaseException] | None, *details: object) -> None:
        recorder, self._recorder = self._recorder, None
        assert recorder is not None
        recorder.end()
        recorder.close()
        if kind is None and self.on_nan == "raise" and not recorder.report.ok:
            raise NotFiniteError(recorder.report)
