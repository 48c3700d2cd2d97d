"""Why a poisoned sample is not fixed: each cause has a sentence that can be checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from zero_or_nan.selfcheck.poisoned import NotFixed

ENDS = ("the process died", "no end in ")
"""The beginnings of the messages about work that did not end."""
UNEXPLAINED = "unexplained"
ATTENTION = frozenset(
    """
    nn.functional.multi_head_attention_forward nn.functional.scaled_dot_product_attention
    torch.ops.aten._efficient_attention_forward torch.ops.aten._flash_attention_forward
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    """.split()
)


@dataclass(frozen=True)
class Cause:
    """A cause: its name for the rows of a table, a sentence, and a test that says which samples it explains."""

    name: str
    sentence: str
    explains: Callable[[str, NotFixed], bool]


CAUSES = (
    Cause(
        "no end",
        "With plain backward and with ignoring, the process dies in one of PyTorch's kernels, or it does not end.",
        lambda operator, sample: sample.failure.startswith(ENDS),
    ),
    Cause(
        "finite in PyTorch",
        "In PyTorch's formula, terms as large as 3e38 cancel. What is left is not their exact sum, or the digits of "
        "smaller terms are lost. So PyTorch's gradient is finite, but not the gradient of the clean input. ignoring "
        "keeps the bits of every finite gradient.",
        lambda operator, sample: sample.finite,
    ),
    Cause(
        "computed zero",
        "A softmax gives the poisoned key the weight 0. The softmax computed this zero, so the zero is not a "
        "selection. 0 times NaN or infinity is NaN, and so is 0 times a product that overflowed.",
        lambda operator, sample: (
            operator in ATTENTION
            and not sample.failure
            and ("nan" not in sample.case or "last entry" in sample.case)  # a causal mask cuts off the last key
        ),
    ),
)


def cause_of(operator: str, sample: NotFixed) -> str:
    """The name of the first cause that explains the sample."""
    return next((cause.name for cause in CAUSES if cause.explains(operator, sample)), UNEXPLAINED)
