"""What is known of PyTorch's functions: which of them select, and what their derivatives do to ignored elements."""

from . import families

__all__ = ["families"]
