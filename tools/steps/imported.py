"""What most chapters import, and what takes seconds: imported once, where several kernels are forks of one process."""

import gc

import matplotlib.backends.backend_svg
import matplotlib.figure  # noqa: F401
import torch._dynamo  # noqa: F401  # torch.func, torch.optim and torch.masked import it, or most of it, at first use
import torch.masked  # noqa: F401

# A collection in a fork would touch, and so copy, the memory that it shares with its siblings.
gc.freeze()
