"""The mechanism drawn: one backward pass, recorded and shown step by step, as PyTorch does it and as `ignoring` does.

In the order of the flow:

- `graph`: both passes, recorded: what arrives at each node, what it saved, what it passes on.
- `derivatives`: PyTorch's own formula of a node, read from the installed PyTorch.
- `arithmetic`: a rule for each function: how an element that it passes on came about, if recomputing gives its bits.
- `told`: the sentences: where NaN is born, and what is ignored.
- `drawing`, `figure`: the graph, and the table of each step.
"""

from .figure import backward_figure

__all__ = ["backward_figure"]
