"""Where did this NaN first appear, and which page is about it?

What users of the library import:

- `explain`: a watch over a block of code, `with explain() as report`; `explain.on_failure` for a training step;
  `explain.probe` for a loss that has not failed yet; `explain.zeros` for a gradient that is 0 or None.
- `Report`, `Origin`, `ProbeReport`, `Finding`, `Zero`: the results. `NotFiniteError`: the error with the report.

`python -m zero_or_nan.explain script.py` watches a script. `explain.huggingface` and `explain.lightning` each have a
callback for a trainer. Only these two files need the frameworks, and no other file imports them.

How it works, with `x.sqrt().log().clamp(-5).sum().backward()` at x = 0 as the example. Each file imports only from
files that are named after it, so you can read on from any file.

1. `block` has the class that you call: `explain`, with `explain.on_failure`, `explain.probe`, and `explain.zeros` from
   `zeros`. The callbacks `huggingface` and `lightning` use `methods` to decorate a trainer's methods.
2. `probe/` searches for a NaN before it happens: in a `script`, or in a loss. `probing` tries inputs of the loss. If an
   input fails, it looks for the nearest input that fails. A `finding` describes it, with a test. `candidates` has
   inputs that are common in practice, and keeps labels labels. `rounded` compares a finite loss with float64. `loss`
   runs the loss many times, and undoes its side effects.
3. `training/` explains a training step that fails. `failure` has the decorator, which runs a failed step a second time,
   inside a watch. `before` copies what a step changes.
4. `watch/` observes the program. `watch` replaces some functions of PyTorch while the block runs, and owns the other
   parts. `forward` checks what each function returns: `sqrt` returned 0, and `log` made -inf of this finite number. So
   the -inf was *born* in `log`, and `clamp` took it. `backward` checks what each node of the graph passes on: the node
   of `log` passed on a NaN, 0 × inf, and this NaN reached x. `regions` looks into compiled code, and `transforms` into
   `torch.func`. Before the backward pass, `shadow` runs it with `ignoring`, in a sandbox. `ignoring` sends no gradient
   to the -inf.
5. `report/` writes it down. `narration` writes what was found into the report, with your names. `course` says whether
   the training run diverged. `report` is what you read, as HTML by `notebook`, with a fix from `remedies`:
   `ignoring.backward`. If the loss uses the element, `trial` finds rewrites of the formula that fit your calls, runs
   them on your numbers, and writes them with your names. `targets` leaves out unknown elements of a target. The loss
   decides on some remedies: `again` runs all calls up to the loss once more, with a function of yours in a wider dtype
   (`wider`), or without an element that does not matter (`left_out`).
   `exact` runs the formula in float64, to find out whether only an intermediate number was lost.
6. `births/` finds out where and why. `nodes`: what was born at a node in backward, and in which call a node was made.
   `diagnosis`: the loss ignores the element, because `clamp` cut it off, so the origin is *contaminated*. `findings`
   has what is known about tensors and nodes, and keeps the last calls. A `chain` of these calls runs again in float64.
   `call` runs a single call again with other numbers. `arithmetic`: `log(0) = -inf`, as text. `provenance` has the
   births that a tensor comes from.
7. `program/` reads your program. `source`: what you wrote in the line of a call, what a name means in another line, and
   which names are free. `rerun` runs code a second time, and undoes its side effects. `code`: the line of a call, and
   what the name of its function says. `tensors`: which of a tensor's numbers are not finite. Your modes and profilers
   do not see these checks.
"""

from .block import explain
from .probe.finding import Finding, ProbeReport
from .report.report import NotFiniteError, Origin, Report
from .zeros import Zero

__all__ = ["Finding", "NotFiniteError", "Origin", "ProbeReport", "Report", "Zero", "explain"]
