"""A program that is run by plain PyTorch and by `ignoring`, and all that can be seen of both."""

import torch
from torch import Tensor
from torch.masked import MaskedTensor
from torch.utils.checkpoint import checkpoint

from zero_or_nan import ignoring


def both(program):
    results = []
    for auto in (torch.autograd, ignoring):
        torch.manual_seed(0)
        results.append(seen(program(auto)))
    return results


def seen(thing):
    """All that can be told of a result, in plain Python."""
    if isinstance(thing, (list, tuple)):
        return type(thing)(map(seen, thing))
    if isinstance(thing, dict):
        return {key: seen(part) for key, part in thing.items()}
    if not isinstance(thing, Tensor):
        return thing
    with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
        kind = type(thing)
        facts = [kind.__name__, str(thing.dtype), str(thing.layout), thing.requires_grad, thing.is_conj()]
        if kind is MaskedTensor:
            return [*facts, seen(thing._masked_data), seen(thing._masked_mask)]
        if thing.is_nested:
            return [*facts, seen(list(thing.detach().unbind()))]
        facts.append(list(thing.shape))
        if thing.is_sparse:
            whole = thing.detach().coalesce()
            return [*facts, thing.is_coalesced(), seen(whole.indices()), seen(whole.values())]
        if thing.layout is not torch.strided:
            return [*facts, seen(thing.detach().to_dense())]
        facts.append(thing.stride())
        if hasattr(thing, "__tensor_flatten__"):
            return [*facts, *(seen(getattr(thing, part)) for part in thing.__tensor_flatten__()[0])]
        if thing.device.type == "meta" or kind.__name__ == "FakeTensor":
            return facts
        bits = thing.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
        return [*facts, bits.tolist()]


def lost(y):
    """A loss that selects, so that there are masks in the pass."""
    return torch.where(y > 0.3, y, 0.0).sum() + (y[:1] * 2).sum()


def leaf(*shape, **options):
    return torch.randn(*shape, **options).requires_grad_()


def checkpointed(function, use_reentrant):
    return lambda *inputs: checkpoint(function, *inputs, use_reentrant=use_reentrant)


def sliced(x):
    y = x * 1
    y[0] = y[1].exp()
    y[1:].clamp_(0.1, 3)
    y[:, 0].mul_(2)
    return y
