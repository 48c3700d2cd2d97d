"""Regions that `torch.compile` compiled: the graph of their backward, what its zeros mean, and a step to follow it."""

from . import step

__all__ = ["step"]
