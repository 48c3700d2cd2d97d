"""The figure of one backward pass, recorded and shown step by step, by plain PyTorch and by `ignoring`.

In the order of the data flow:

- `graph` records both passes: what arrives at each node, what the node saved, and what it passes on.
- `arithmetic` shows how an element was computed, if recomputing it gives the same bits.
- `told` makes the sentences: where NaN first appears, and which elements are ignored.
- `drawing` and `figure` draw the graph, and make the table of each step.
"""

from .figure import backward_figure

__all__ = ["backward_figure"]
