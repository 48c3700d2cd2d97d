"""Slow imports that most chapters share. One process runs them once, and several kernels are forks of this process."""

import gc

import matplotlib.backends.backend_svg
import matplotlib.figure  # noqa: F401
import torch._dynamo  # noqa: F401  # torch.func, torch.optim and torch.masked import it, or most of it, at first use
import torch.masked  # noqa: F401

# A garbage collection in a fork would write to memory that the forks share, and the system would then copy it.
gc.freeze()
