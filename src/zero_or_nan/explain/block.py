"""What users call: `with explain() as report`."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Literal

from .probe.probing import probe
from .report.report import NotFiniteError, Report
from .training.failure import on_failure
from .watch.watch import Watch
from .zeros import zeros


class explain:  # noqa: N801
    """Watch a block of code, and report where a NaN or an infinity that reached the loss or a gradient first appeared.

    Results, gradients and random numbers have the same bits with and without `explain`.

    If the graph holds a number that could contaminate the gradient, `ignoring` first runs the backward pass one extra
    time. This extra pass does not run the hooks of leaves, or hooks that were registered in the block. Three kinds of
    code run twice: hooks that were registered inside a graph before the block, code in a checkpoint, and an
    `autograd.Function` that you registered with `ignoring.function`. What the code in a checkpoint writes into tensors
    during the extra pass is undone. If you did not register such a function, `explain` skips the extra pass.

    Until a backward pass ends, `explain` keeps the operands of the last 16,000 calls, at most 256 MB of them. If the
    loss uses the NaN or infinity, `explain` runs the failed formula again on these operands, written in several ways,
    to find a version that gives the right numbers. After a minute, it begins no more runs of all calls.

    Your own modes, `FlopCounterMode` and PyTorch's profilers do not count the operators that `explain` runs. A profiler
    that records memory, stacks of Python calls, or kernels on a GPU does record the ones from `explain` too.

    If there are several processes, each process watches only itself. With `on_nan="raise"`, a process also raises if
    its gradients are not finite because of another process. So all processes of `DistributedDataParallel` raise after
    the same pass, without extra communication. In a pass that does not synchronize gradients, as in `no_sync()`, only
    the process with the NaN raises. If this process continues, it must still take part in the others' communication.

    If a compiled region produces a NaN or an infinity, in forward or in backward, `explain` runs the graph of the
    region a second time, uncompiled and on copies, and reports the line inside it. The results stay those of the
    compiled code. If a transform of `torch.func` produces the NaN or infinity, `explain` calls the transformed function
    again, without the transform, and reports the line inside it.

    An optimizer's step, or your own code, may make a parameter NaN or infinite even if every gradient was finite. If no
    backward pass follows in the block, the report names this origin when the block ends. If no backward pass found a
    problem, the report also names a NaN or infinity in a result that still exists and that no function has used.

    Args:
        on_nan: with "report", the block continues. With "raise", `NotFiniteError` is raised at the end of the backward
            pass, before an optimizer can take a step. If the block has no backward pass, it is raised at the end of the
            block.

    Raises:
        ValueError: if `on_nan` is neither "report" nor "raise".
        RuntimeError: if you enter the same `explain` object again inside its own block.

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

    if TYPE_CHECKING:  # in a `staticmethod`, a function that is overloaded and generic loses its types
        on_failure = on_failure
        probe = probe
        zeros = zeros
    else:
        on_failure = staticmethod(on_failure)
        probe = staticmethod(probe)
        zeros = zeros

    def __init__(self, on_nan: Literal["report", "raise"] = "report") -> None:
        if on_nan not in ("report", "raise"):
            raise ValueError(f'on_nan={on_nan!r} is not known: use "report" to continue, or "raise" to stop')
        self.on_nan = on_nan
        self._watch: Watch | None = None

    def __enter__(self) -> Report:
        if self._watch is not None:
            raise RuntimeError("this explain object already watches a block: create another one with explain()")
        self._watch = Watch(Report(), self.on_nan == "raise")
        self._interrupted = weakref.finalize(self, self._watch.end)  # Ctrl-C may come before or in `__exit__`
        self._interrupted.atexit = False
        return self._watch.__enter__()

    def __exit__(self, kind: type[BaseException] | None, *details: object) -> None:
        watch = self._watch
        assert watch is not None
        watch.end()
        self._watch = None
        self._interrupted.detach()
        if kind is None and self.on_nan == "raise" and not watch.report.ok:
            raise NotFiniteError(watch.report)
