"""Losses: each row of a batch has its own loss, and some rows or classes are not part of it.

The negative log-likelihood of a row reads one element: the score of its target. Its derivative writes -g there, and 0
elsewhere. These zeros mean "not selected", and so do all elements of a row whose target is `ignore_index`:

>>> from torch.nn.functional import nll_loss
>>> from zero_or_nan import ignoring
>>> scores = torch.tensor([[-1.0, -2.0], [-3.0, -4.0]], requires_grad=True)
>>> loss = nll_loss(scores, torch.tensor([0, -100]), reduction="sum")
>>> (gradient,) = ignoring.grad(loss, [scores], ignored="masked")
>>> gradient.get_data().tolist(), gradient.get_mask().tolist()
([[-1.0, 0.0], [0.0, 0.0]], [[True, False], [False, False]])
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...masks.cotangent import Cotangent, mask_of, selecting, unwrap, zero_ignored
from ...masks.mask import both, everywhere, expanded
from ..conditions import ALWAYS, AWAY_FROM_ZERO, MODERATE
from ..graph import can_be_read_again
from ..numerics import numerics
from ..record import GENERATED
from ..registry import derivative, function, rule
from ..rewrites import rewrite
from .pointwise import product

_MEAN = 1
"""PyTorch's number of a reduction."""


def _divides_by_no_zero(node: Any) -> bool:
    """True unless the loss is a mean whose total weight may be 0. The other reductions don't divide by it."""
    if node._saved_reduction != _MEAN:
        return True
    if not can_be_read_again(node, unknown=False):
        return False
    total = node._saved_total_weight.item()
    return AWAY_FROM_ZERO.accepts(node._saved_total_weight.dtype, total, total)


function(
    "NllLoss NllLoss2D",
    selects=True,
    safe_if=MODERATE,
    safe_if_saved={"self": ALWAYS, "total_weight": ALWAYS},
    only_if=_divides_by_no_zero,
)
function("CtcLoss MultiMarginLoss MultilabelMarginLoss", selects=True)
function("BinaryCrossEntropyWithLogits MseLoss", safe_if=MODERATE)

numerics(
    "cross_entropy",
    ignores_infinity=True,
    needs_one=True,
    compares=True,
    points="undefined#cross-entropy-with-every-target-ignored",
)
numerics("nll_loss", needs_one=True)
numerics("mse_loss l1_loss smooth_l1_loss huber_loss gaussian_nll_loss poisson_nll_loss", compares=True)
numerics("binary_cross_entropy binary_cross_entropy_with_logits", compares=True)
numerics("kl_div", compares=True, points="losses-and-geometry#kl-divergence-a-target-of-0")
numerics("ctc_loss", points="losses-and-geometry#ctc-a-target-that-does-not-fit")

for name in ("cross_entropy", "nll_loss"):
    rewrite(
        f"{name}(x, target, ignore_index=i)",
        f'F.{name}(x, target, reduction="sum", ignore_index=i) / (target != i).sum().clamp_min(1)',
        "the mean over no targets is 0",
    )
rewrite(
    "cross_entropy(x, target, label_smoothing=s)",
    "(1 - s) * F.cross_entropy(x, target) + s * torch.where(x == -torch.inf, 0, -x.log_softmax(1)).mean()",
    "a class with the score -inf gets no part of the smoothing",
)
rewrite(
    "ctc_loss(x, targets, n, m, reduction=r)",
    "F.ctc_loss(x, targets, n, m, reduction=r, zero_infinity=True)",
    "a target without an alignment counts 0",
)
rewrite(
    "kl_div(x, p, reduction=r)",
    "F.kl_div(x, torch.where(p == 0, 1e-30, p), reduction=r)",
    "a target of 0 counts as 1e-30",
)
rewrite(
    "kl_div(x, p, reduction=r)",
    "F.kl_div(x, p.clamp_min(0), reduction=r)",
    "a negative target counts as 0",
)
_OUT = "torch.where(p == -torch.inf, 0, {})"
rewrite(
    "kl_div(x, p, reduction=r, log_target=f)",
    f"F.kl_div({_OUT.format('x')}, {_OUT.format('p')}, reduction=r, log_target=f)",
    "a target of -inf, whose share is 0, counts as 0",
)
rewrite(
    "poisson_nll_loss(x, target, log_input=f, reduction=r)",
    "F.poisson_nll_loss(x.clamp_min(1e-8), target, log_input=f, reduction=r)",
    "a rate below 1e-8 counts as 1e-8, with a slope of 0",
)


# Each element has its own loss, and the cotangent is multiplied by its slope.
rule(
    "binary_cross_entropy_backward",
    "huber_loss_backward",
    "mse_loss_backward",
    "smooth_l1_loss_backward",
    "soft_margin_loss_backward",
)(product)


@rule("nll_loss_backward", "nll_loss2d_backward")
def nll_loss_backward(
    op: Any, grad: Any, scores: Tensor, target: Tensor, weight: Any, reduction: int, ignored: int, total: Tensor
) -> Any:
    """Each row selects the element of its target. A row whose target is `ignore_index` selects none."""
    value = op(unwrap(grad), unwrap(scores), target, weight, reduction, ignored, total)
    classes = 1 if scores.dim() > 1 else 0
    mask = mask_of(grad)
    if mask is not None and mask.dim():
        mask = mask.unsqueeze(classes)
    if selecting(grad):
        picked = target.unsqueeze(classes)
        kept = picked != ignored
        found = torch.zeros(value.shape, dtype=torch.bool, device=value.device)
        # `ignore_index` may be an invalid index.
        mask = found.scatter_(classes, picked.where(kept, 0), kept if mask is None else kept & mask)
    return zero_ignored(value, mask)


@rule("_ctc_loss_backward")
def ctc_loss_backward(
    op: Any,
    grad: Any,
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    likelihood: Tensor,
    log_alpha: Tensor,
    blank: int,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Each sequence has its own loss, of the frames up to its length, and of the classes in its target and the blank.

    For any other class, PyTorch's gradient is the probability, as for a log_softmax. It is kept if it is finite.
    """
    saved = unwrap((log_probs, targets, input_lengths, target_lengths, likelihood, log_alpha))
    value = op(unwrap(grad), *saved, blank, *args, **kwargs)
    frames, sequences, _ = value.shape
    lengths = torch.as_tensor(input_lengths, device=value.device).reshape(1, -1, 1)
    inside = torch.arange(frames, device=value.device).reshape(-1, 1, 1) < lengths
    sizes = torch.as_tensor(target_lengths, device=value.device)
    number = torch.arange(sequences, device=value.device)
    if targets.dim() == 1:  # one after the other
        number = number.repeat_interleave(sizes)
    else:  # padded to one length
        within = torch.arange(targets.shape[1], device=value.device) < sizes.unsqueeze(1)
        number, targets = number.unsqueeze(1).expand(targets.shape)[within], targets[within]
    read = torch.zeros(value.shape[1:], dtype=torch.bool, device=value.device)
    read[number, targets] = True
    read[:, blank] = True
    arriving = mask_of(grad)
    mask = both(inside, None if arriving is None else arriving.reshape(1, -1, 1))
    counts = read | value.isfinite() | (not selecting(grad))
    return zero_ignored(value.masked_fill_(counts.logical_not(), 0), mask & counts)


@rule("multi_margin_loss_backward", "multilabel_margin_loss_backward")
def margin_loss_backward(op: Any, grad: Any, saved: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Each row has its own loss. An element beyond the margin is ignored, unless its row has a NaN."""
    value = op(unwrap(grad), saved, *args, **kwargs)
    unordered = saved.isnan().any(-1, keepdim=True) if saved.dim() else saved.isnan()
    with_ones = op(torch.ones_like(unwrap(grad)), saved, *args, **kwargs)
    mask = (with_ones != 0) | unordered | (not selecting(grad))
    arriving = mask_of(grad)
    if arriving is not None:
        mask = mask & (arriving.unsqueeze(-1) if saved.dim() > 1 and arriving.dim() else arriving.any())
    return zero_ignored(value, expanded(mask, value.shape))


# A linear layer and its cross entropy, chunk by chunk: two of PyTorch's operators. Their backwards in Python write into
# memory of their own, where no mask can follow. So each has a second formula here.

_CHUNKED = f"{GENERATED}torch_nn__linear_cross_entropy_batch_chunked"


@derivative(f"{_CHUNKED}_default")
def of_all_rows(node: Any, grads: Any) -> tuple[Any, ...]:
    """The mean or the sum. The forward pass has computed all gradients, so all of their elements count, or none.

    The saved gradients can be read only once, by PyTorch's own backward. So the gradients here are NaN, or 0 if they
    are ignored; they replace elements that are not finite.
    """
    mask = mask_of(grads[0])
    counts = mask is None or bool(mask)

    def gradient(place: int) -> Cotangent:
        ahead, number = node.next_functions[place]
        metadata = ahead._input_metadata[number]
        value = torch.full(
            tuple(metadata.shape), torch.nan if counts else 0.0, dtype=metadata.dtype, device=metadata.device
        )
        return Cotangent(value, everywhere(counts, value))

    places = (0, 1, 3)  # rows, layer, bias
    wanted = [place in places and needed for place, needed in enumerate(node.needs_input_grad)]
    return tuple(gradient(place) if each else None for place, each in enumerate(wanted))


@derivative(f"{_CHUNKED}_no_reduction_default")
def of_each_row(node: Any, grads: Any) -> tuple[Any, ...]:
    """Softmax minus one-hot target, times the weight of the target, which is 0 for `ignore_index`."""
    rows, layer, target, bias, weight = node.saved_tensors
    wide = torch.promote_types(rows.dtype, torch.float32)
    rows, layer = rows.to(wide), layer.to(wide)
    kept = target != node._ignore_index
    picked = target.where(kept, 0)
    logits = rows @ layer.mT if bias is None else rows @ layer.mT + bias.to(wide)
    difference = logits.softmax(1) - torch.nn.functional.one_hot(picked, len(layer))
    weights = kept.to(wide) if weight is None else kept * weight.to(wide)[picked]
    to_logits = (grads[0].to(wide) * weights).unsqueeze(1) * difference
    to_bias = None if bias is None else to_logits.sum(0)
    return to_logits @ layer, to_logits.mT @ rows, None, to_bias, None, None, None, None, None
