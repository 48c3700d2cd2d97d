"""Where did this NaN first appear, and which page is about it?

What users of the library import:

- `explain`: a watch over a block of code, `with explain() as report`; `explain.on_failure` for a training step.
- `Report`, `Origin`: what it finds; `NotFiniteError`: what it raises, if you ask it to.

`python -m zero_or_nan.explain script.py` watches a script. `explain.huggingface` and `explain.lightning` each have a
callback for a trainer; no other file needs these frameworks, or imports these two files.

How it works: what watches emits events, and a diagnosis reads them. Each file imports only from files named after it.

1. `huggingface`, `lightning`: callbacks, which put `methods` that are explained when they fail into a trainer.
   `block`, `failure`: what users call. `watch`: owns the parts of one watch, and hands on what one finds to the next.
   `before`: a copy of what a step changes. `course`: the loss and the parameters over the steps before a failure.
2. `patches`: the functions of PyTorch that the watch replaces while it lasts, by means of `zero_or_nan.replacing`.
3. `forward`: checks each function of PyTorch as it returns. `attribution`: which elements of a bad result were *born*
   in the call, and which came with an operand. The nodes of the graph *carry* the answer to backward.
4. `backward`: checks what each node passes on, and notes what has been *reached* in the end. `node_births`: what is
   born at a node. `originations`: the user's call that a node comes from. `shadow`: the same pass run by `ignoring`, in
   a `sandbox` that hides it from the user's program. `regions`: if what comes out of a compiled region is not finite,
   the region's graph runs a second time, uncompiled and watched.
5. `narration`: writes diagnoses into the report. `diagnosis`: from `events` and a shadow to the kind of each origin, by
   pure functions. `ties`: whether the kind follows from a convention of PyTorch alone.
6. `report`: what the user reads, as HTML by `notebook`; with `remedies`, and the user's `names`.

What they have in common:

- `findings`: what a watch knows so far. `derivatives`, `births`, `calls`: what a function gives if it runs again with
  other numbers. `underflow`: whether a 0 was an exponential. `nodes`: notes on the nodes of the graph.
  `provenance`: the births that a tensor comes from.
- `functions`: what a function's name says about it. `arithmetic`: the numbers that an element was made of, as text.
  `places`: a line of the user's code. `tensors`: the numbers of a tensor. `unseen`: keeps all this out of sight of
  modes and profilers.
"""

from .block import explain
from .report.report import NotFiniteError, Origin, Report

__all__ = ["NotFiniteError", "Origin", "Report", "explain"]
