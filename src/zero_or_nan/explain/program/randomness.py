"""The states of PyTorch's random numbers, on the CPU and on the GPUs in use."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import torch
from torch import Tensor


class RandomState(NamedTuple):
    """The states of the generators at one time."""

    cpu: Tensor
    gpus: list[Tensor]

    @classmethod
    def now(cls) -> RandomState:
        """The states now."""
        in_use = torch.cuda.is_initialized()
        return cls(torch.get_rng_state(), torch.cuda.get_rng_state_all() if in_use else [])

    def put_back(self) -> None:
        """Go back to these states."""
        torch.set_rng_state(self.cpu)
        if self.gpus:
            torch.cuda.set_rng_state_all(self.gpus)

    def has_changed(self) -> bool:
        """Whether random numbers were drawn since. A GPU that came into use since does not count."""
        cpu, gpus = RandomState.now()
        return not all(itertools.starmap(torch.equal, ((self.cpu, cpu), *zip(self.gpus, gpus, strict=False))))
