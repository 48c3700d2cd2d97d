"""Losses that PyTorch computes in one operator: linear_cross_entropy in chunks, CTC, NLL; and logcumsumexp."""

from functools import partial
from math import inf, nan

import pytest
import torch
from alone import assert_fixed, gradients, numbers
from torch.nn import functional

from zero_or_nan import ignoring

linear_cross_entropy = getattr(functional, "linear_cross_entropy", None)
since_2_13 = pytest.mark.skipif(linear_cross_entropy is None, reason="PyTorch has none before 2.13")
FORMS = {  # what is passed beside the tensors, and whether PyTorch computes it in chunks
    "in one": (lambda: {}, False),
    "chunks of two": (lambda: {"options": _options(batch_chunk_size=2)}, True),
    "chunks in float32": (lambda: {"options": _options(batch_chunk_size=3, acc_dtype=torch.float32)}, True),
    "chunks, graph kept": (lambda: {"options": _options(batch_chunk_size=2, allow_retain_graph=True)}, True),
}


def _options(**chosen):
    from torch.nn.modules.linear_cross_entropy_options import LinearCrossEntropyOptions

    return LinearCrossEntropyOptions(**chosen)


def loss_of_rows(rows, layer, bias, weight, target, form, reduction="none", ignore_index=-100):
    more = FORMS[form][0]() | ({} if ignore_index == -100 else {"ignore_index": ignore_index})
    return linear_cross_entropy(rows, layer, target, linear_bias=bias, weight=weight, reduction=reduction, **more)


@since_2_13
@pytest.mark.parametrize("poison", [nan, 3e38])
@pytest.mark.parametrize(("with_bias", "with_weight", "ignore_index"), [(True, False, -100), (False, True, 2)])
@pytest.mark.parametrize("form", FORMS)
def test_rows_whose_losses_are_ignored_don_t_matter(form, ignore_index, with_bias, with_weight, poison, recwarn):
    rows, layer, target = numbers(6, 3), numbers(5, 3), torch.tensor([0, 4, 2, 1, 3, 2])
    bias, weight = numbers(5) if with_bias else None, numbers(5).abs() if with_weight else None
    used = torch.tensor([True, True, True, False, True, False])
    poisoned = rows.clone()
    poisoned[3], poisoned[5, 1] = poison, poison

    def losses(form, rows, layer, bias=None):
        of_classes = weight.to(rows.dtype) if with_weight else None
        return loss_of_rows(rows, layer, bias, of_classes, target, form, "none", ignore_index).where(used, 0).exp()

    others = [layer, bias] if with_bias else [layer]
    in_form, exact = partial(losses, form), partial(losses, "in one" if FORMS[form][1] else form)
    plain = assert_fixed(in_form, [poisoned, *others], [rows, *others], ..., 1e-4, 1e-4, exact)
    assert poison == 3e38 or not plain[1].isfinite().all()
    assert not [warning for warning in recwarn if "could not follow" in str(warning.message)]


@since_2_13
@pytest.mark.parametrize(("form", "with_bias"), [("chunks of two", False), ("chunks, graph kept", True)])
def test_a_sum_of_losses_that_is_used_stays_undefined(form, with_bias):
    rows, layer, target = numbers(4, 3), numbers(5, 3), torch.tensor([0, 4, 2, 1])
    rows[1] = nan
    tensors = [torch.full((), nan), rows, layer, *([numbers(5)] if with_bias else [])]

    def losses(ignored, rows, layer, bias=None):
        losses = torch.stack([loss_of_rows(rows, layer, bias, None, target, form, "sum"), ignored.exp()])
        return losses.where(torch.tensor([True, False]), 0)

    ours, plain = (gradients(auto.grad, losses, tensors) for auto in (ignoring, torch.autograd))
    assert ours[0] == 0 and plain[0].isnan()
    for mine, exact in zip(ours[1:], plain[1:], strict=True):
        assert torch.equal(mine.isfinite(), exact.isfinite()) and not exact.isfinite().all()
        assert torch.equal(mine[exact.isfinite()], exact[exact.isfinite()])


TARGETS = [torch.tensor([1, 2, 3]), torch.tensor([3, 1, 0]), torch.tensor([2, 2, 0])]
SIZES, FRAMES = [3, 2, 2], [8, 6, 7]


def ctc(log_probs, padded, listed, **options):
    targets = torch.stack(TARGETS) if padded else torch.cat([t[:size] for t, size in zip(TARGETS, SIZES, strict=True)])
    lengths = (FRAMES, SIZES) if listed else (torch.tensor(FRAMES), torch.tensor(SIZES))
    return functional.ctc_loss(log_probs, targets, *lengths, **options)


FRAMES_LEFT = torch.arange(8)[:, None] >= torch.tensor(FRAMES)
SPOILT = {  # elements that are poison, and the sequences that are used
    "frames after the end": (FRAMES_LEFT[..., None].expand(8, 3, 5), [True, True, True]),
    "a sequence whose loss is ignored": (
        torch.tensor([False, True, False])[:, None].expand(8, 3, 5),
        [True, False, True],
    ),
}
CTC = pytest.mark.parametrize(
    ("padded", "listed", "zero_infinity"), [(True, False, False), (False, True, True), (True, True, True)]
)


@pytest.mark.parametrize("poison", [nan, -inf])
@pytest.mark.parametrize("spoilt", SPOILT)
@CTC
def test_what_no_used_sequence_reads_does_not_matter(padded, listed, zero_infinity, spoilt, poison):
    log_probs = numbers(8, 3, 5).log_softmax(2)
    places, used = SPOILT[spoilt][0], torch.tensor(SPOILT[spoilt][1])
    reduction, used = ("mean", ...) if used.all() else ("none", used)
    losses = partial(ctc, padded=padded, listed=listed, zero_infinity=zero_infinity, reduction=reduction, blank=4)
    assert_fixed(losses, [log_probs.masked_fill(places, poison)], [log_probs], used, 1e-4, 1e-4)


@pytest.mark.parametrize("entry", [(3, 1, 3), (3, 1, 4), (3, 2, 2)])
@CTC
def test_a_class_that_is_read_stays_undefined(padded, listed, zero_infinity, entry):
    log_probs = numbers(8, 3, 5).log_softmax(2)
    log_probs[entry] = nan
    log_probs[:, 0] = nan
    losses = partial(ctc, padded=padded, listed=listed, zero_infinity=zero_infinity, reduction="none", blank=4)
    (ours,) = gradients(ignoring.grad, losses, [log_probs], slice(1, 3))
    assert ours[entry].isnan() and not ours[:, 0].any()


def test_a_row_whose_target_is_ignore_index_is_ignored_whatever_class_that_is():
    scores = torch.tensor([[-1.0, -2.0], [-3.0, -4.0]], requires_grad=True)
    losses = functional.nll_loss(scores, torch.tensor([0, 1]), ignore_index=1, reduction="sum")
    (masked,) = ignoring.grad(losses, scores, ignored="masked")
    assert masked.get_data().tolist() == [[-1.0, 0.0], [0.0, 0.0]]
    assert masked.get_mask().tolist() == [[True, False], [False, False]]
