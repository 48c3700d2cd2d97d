"""Where did this NaN first appear, and which page is about it?

What users of the library import:

- `explain`: a watch over a block of code, `with explain() as report`; `explain.on_failure` for a training step;
  `explain.probe` for a loss that has not failed yet; `explain.zeros` for a gradient that is 0 or None.
- `Report`, `Origin`, `ProbeReport`, `Finding`, `Zero`: what they find; `NotFiniteError`: what it raises, if you ask.

`python -m zero_or_nan.explain script.py` watches a script. `explain.huggingface` and `explain.lightning` each have a
callback for a trainer; no other file needs these frameworks, or imports these two files.

How it works, with `x.sqrt().log().clamp(-5).sum().backward()` at x = 0 as the example. Each file imports only from
files that are named after it, so you can read on from any file.

1. `block` has what you call: `explain`, with `explain.on_failure`, `explain.probe`, and `explain.zeros` from `zeros`.
   The callbacks `huggingface` and `lightning` decorate the methods of a trainer, by `methods`.
2. `probe/` searches for a NaN before it happens: in a `script`, or in a loss. `probing` tries inputs of the loss. If
   one of them fails, it goes back to the nearest input that fails. A `finding` says so, with a test. `candidates` has
   the inputs that people meet, and keeps labels labels. `rounded` compares a finite loss with float64. `loss` runs the
   loss many times, and leaves nothing behind.
3. `training/` explains a training step that fails. `failure` has the decorator, which runs a step that failed a second
   time inside of a watch. `before` copies what a step changes.
4. `watch/` sees what happens. `watch` replaces some functions of PyTorch while the block runs, and owns the other
   parts. `forward` checks what each function returns: `sqrt` gave 0, and `log` made -inf of this finite number, so the
   -inf was *born* there, and `clamp` took it. `backward` checks what each node of the graph passes on: the node of
   `log` passed on a NaN, 0 × inf, and this NaN reached x. `regions` looks into compiled code, and `transforms` into
   `torch.func`. `shadow` runs this backward pass first with `ignoring`, in a sandbox. That pass sends no gradient to
   the -inf.
5. `report/` says it. `narration` writes what was found into the report, in your names. `course` says whether the
   training diverged before. `report` is what you read, as HTML by `notebook`, with `remedies`: `ignoring.backward`.
   If the loss uses the element, `trial` finds other ways to write the formula that fit your calls, runs them on your
   numbers, and writes them in your words. `widening` takes a wider dtype, and `targets` leaves out unknown elements
   of a target. Some remedies are judged by the loss: `again` runs all calls once more, up to it, with wider arguments
   of your function (`wide_calls`), or without an element that does not matter (`left_out`). `exact` runs the formula
   in float64, and finds out whether only a number on the way was lost.
6. `births/` finds out where and why. `nodes`: what was born at a node in backward, and in which call a node was made.
   `diagnosis`: the loss ignores the element, because `clamp` cut it off, so the origin is *contaminated*. `findings`
   has what is known of tensors and nodes, and keeps the last calls. A `chain` of them runs again in float64. `call`
   runs one of them again with other numbers. `arithmetic`: `log(0) = -inf`, as text. `provenance` has the births that
   a tensor comes from.
7. `program/` reads your program. `source`: what you wrote in the line of a call, what a name means in another line,
   and which names are free. `rerun` runs code a second time, and leaves everything of yours as it was. `code`: the
   line of a call, and what the name of its function says. `tensors`: which of a tensor's numbers are not finite. They
   are read out of sight of your modes and profilers.
"""

from .block import explain
from .probe.finding import Finding, ProbeReport
from .report.report import NotFiniteError, Origin, Report
from .zeros import Zero

__all__ = ["Finding", "NotFiniteError", "Origin", "ProbeReport", "Report", "Zero", "explain"]
