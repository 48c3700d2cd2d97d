"""Where was this NaN born, and which page is about it?

What users of the library import:

- `explain`: a watch over a block of code, `with explain() as report`; `explain.on_failure` for a training step.
- `Report`, `Origin`: what it tells; `NotFiniteError` is what it raises where that is asked for.

`python -m zero_or_nan.explain script.py` does it for a script.

How it works, in the order of the flow:

- `block`, `failure`: what users call; `recorder`: all that one watch knows.
- `patches`: what of PyTorch is replaced while it lasts; `zero_or_nan.replacing`: by several watches at once.
- `forward`: each public function is looked at as it returns; `places`, `names`: where that was, in the user's words.
- `backward`: what each node passes on; `shadow`: the same pass by `ignoring`, which tells what the loss ignored;
  `undoing` puts back what that writes to.
- `traces`: what a tensor that is not finite has it from.
- `arithmetic`: of which numbers it was made.
- `remedies`, `report`, `notebook`: what is told.
"""

from .block import explain
from .report import NotFiniteError, Origin, Report

__all__ = ["NotFiniteError", "Origin", "Report", "explain"]
