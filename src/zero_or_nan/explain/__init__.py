"""Where did this NaN first appear, and which page is about it?

What users of the library import:

- `explain`: a watch over a block of code, `with explain() as report`; `explain.on_failure` for a training step.
- `Report`, `Origin`: what it finds; `NotFiniteError`: what it raises, if you ask it to.

`python -m zero_or_nan.explain script.py` watches a script. `explain.huggingface` and `explain.lightning` each have a
callback for a trainer; no other file needs these frameworks, or imports these two files.

How it works, with `x.sqrt().log().clamp(-5).sum().backward()` at x = 0 as the example. Each file imports only from
files that are named after it, so you can read on from any file.

1. `training/` explains a training step that fails. The callbacks `huggingface` and `lightning` decorate the methods of
   a trainer, by `methods`. `block` has the function that you call, and `failure` has the decorator, which runs a step
   that failed a second time inside of a watch. `before` copies what a step changes.
2. `watch/` sees what happens. `watch` replaces some functions of PyTorch while the block runs, and owns the other
   parts. `forward` checks what each function returns: `sqrt` gave 0, `log` gave -inf. `backward` checks what each
   node of the graph passes on: the node of `log` passed on a NaN, 0 × inf, and this NaN reached x. `regions` looks
   into compiled code. `shadow` runs this backward pass first with `ignoring`, in a sandbox. That pass sends no gradient
   to the -inf.
3. `report/` says it. `narration` writes what was found into the report, in your names. `course` says whether the
   training diverged before. `report` is what you read, as HTML by `notebook`, with `remedies`: `ignoring.backward`. If
   the loss uses the element, `trial` runs other ways to write the formula on your numbers. `lines` writes them in your
   words, and `matching` finds those that fit your calls. `exact` runs the formula in float64, and finds out whether
   only a number on the way to the failure was lost.
4. `births/` finds out where and why. `attribution`: `log` made the -inf of finite numbers, so the -inf was *born*
   there, and `clamp` took it. `nodes`: what was born at a node in backward, and in which call a node was made.
   `calls` lets a call run again with other numbers. `arithmetic`: `log(0) = -inf`, as text. `diagnosis`: the loss
   ignores the element, because `clamp` cut it off, so the origin is *contaminated*. `findings` has what is known of
   tensors and nodes. `history` keeps the last calls, so that a formula can run again; `call` is one of them.
   `provenance` has the births that a tensor comes from.
5. `program/` reads your program. `expression`: what you wrote in the line of a call. `code`: the line of a call, and
   what the name of its function says. `tensors`: which of a tensor's numbers are not finite. They are read out of sight
   of your modes and profilers.
"""

from .block import explain
from .report.report import NotFiniteError, Origin, Report

__all__ = ["NotFiniteError", "Origin", "Report", "explain"]
