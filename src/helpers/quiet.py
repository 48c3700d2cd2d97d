"""Silence the one warning that every page would otherwise repeat.

`torch.masked` warns about its prototype state at every construction. The book says so once, in prose. Nothing else
is silenced: a warning that a page provokes is part of what the page shows.
"""

import warnings

PROTOTYPE = "The PyTorch API of MaskedTensors is in prototype stage"


def quiet_prototype_warning() -> None:
    """Ignore `torch.masked`'s prototype warning, and no other.

    Called once when `helpers` is imported; call it again after `warnings.resetwarnings()`.

    >>> quiet_prototype_warning()
    >>> import torch, warnings
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     _ = torch.masked.masked_tensor(torch.ones(2), torch.tensor([True, False]))
    >>> len(caught)
    0
    """
    warnings.filterwarnings("ignore", message=PROTOTYPE, category=UserWarning)
