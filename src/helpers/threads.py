"""The public threads that the book reproduces.

Their titles, addresses and states are only in this file, with a date.
"""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import Any

LOOKED_UP = "2026-11-22"
"""The day on which we read the titles, states and decisions below, in stored copies of the threads."""


@dataclass(frozen=True)
class Thread:
    """A public thread: an issue, a question or a forum topic.

    `number` is the number of the PyTorch issue, or None. `state` says whether the thread is open, and what its
    maintainers or its answers decided. If we found no decision, `state` says so.
    """

    key: str
    label: str
    title: str
    url: str
    state: str
    number: int | None = None
    looked_up: str = LOOKED_UP

    def text(self) -> str:
        return f"{self.title}\n{self.url}\n{self.state} (looked up {self.looked_up})"

    def html(self, more: str = "") -> str:
        """A card with the thread's title, its address, and its state. `more` is HTML for a last line."""
        return (
            f'<div class="zn-claim"><p>{self.link()}: {html.escape(self.title)}</p>'
            f"<p>{html.escape(self.state)} <span class='zn-note'>(looked up {self.looked_up})</span></p>{more}</div>"
        )

    def link(self) -> str:
        """The thread's label as HTML, with a link to the thread."""
        return f'<a href="{html.escape(self.url, quote=True)}">{html.escape(self.label)}</a>'

    def json(self) -> dict[str, Any]:
        read = {"title": self.title, "url": self.url, "state": self.state, "looked_up": self.looked_up}
        return {"type": "thread", "case": self.key, **read}


def thread(key: str) -> Thread:
    """The thread of a case.

    Raises:
        KeyError: if there is no such case. The message lists all cases.

    >>> thread("4132").title
    'x.grad should be 0 but get NaN after x/0'
    """
    if key not in THREADS:
        raise KeyError(
            f"no case has the key {key!r}; the keys are {', '.join(THREADS)}. To add a case, edit helpers/threads.py"
        )
    return THREADS[key]


def by_key(*threads: Thread) -> dict[str, Thread]:
    """The threads by their keys, in this order."""
    return {each.key: each for each in threads}


def upstream(number: int, title: str, state: str, kind: str = "issues", looked_up: str = LOOKED_UP) -> Thread:
    """A thread on PyTorch's GitHub: an issue or, if `kind` is `"pull"`, a pull request."""
    url = f"https://github.com/pytorch/pytorch/{kind}/{number}"
    return Thread(str(number), f"pytorch#{number}", title, url, state, number, looked_up)


THREADS = by_key(
    upstream(
        160016,
        "Requesting a better torch.auto_grad.detect_anomaly() for NaN detection",
        "Open. Asks that a NaN of the forward pass be found too, and on request an infinity. A pull request with a "
        "mode for that, pytorch#187653, was closed.",
    ),
    Thread(
        "gradient-argument",
        "Stack Overflow, 2017",
        "Pytorch, what are the gradient arguments",
        "https://stackoverflow.com/questions/43451125/pytorch-what-are-the-gradient-arguments",
        "Answered: a weight for each element of the output, the derivative of the final loss with respect to it.",
    ),
    upstream(
        10729,
        "Gradient of clamp is nan for inf inputs",
        "Closed. The thread asked for a zero gradient wherever clamp cuts off, for inf too. We did not find why it was "
        "closed.",
    ),
    upstream(
        52248,
        "torch.where leads to unexpected gradients",
        "Closed, labelled “has workaround” and “needs design”. A maintainer saw nothing to be done until PyTorch "
        "can tell a zero gradient from no gradient.",
    ),
    upstream(
        67180,
        "Gradient of nansum and nanmean wrongly produces `nan`",
        "Closed. The thread points to MaskedTensor. We did not find why it was closed.",
    ),
    upstream(
        4132,
        "x.grad should be 0 but get NaN after x/0",
        "Open. The asker's advice in the thread: let no inf arise in the forward pass; the newest, of 2025: a backward "
        "hook. PyTorch's autograd notes now explain the case, and name masking before the division, or MaskedTensor.",
    ),
    upstream(
        196678,
        "[SDPA] cuDNN backward returns NaN grad_q for seq_len % 128 == 64 with attn_mask on H100/H200 (regression "
        "since 2.11, default backend)",
        "Closed, high priority. A pull request, pytorch#196861, brings cuDNN 9.26 and a guard for older versions.",
        looked_up="2026-11-26",
    ),
    upstream(
        147140,
        "Mask in MaskedTensor does not change device",
        "Open. A maintainer in February 2025: masked tensor is not currently receiving active development.",
    ),
    Thread(
        "slicing-nan",
        "PyTorch forum 135053",
        "Gradients contaminated by unused inputs",
        "https://discuss.pytorch.org/t/gradients-contaminated-by-unused-inputs/135053",
        "Answered: this is expected, because autograd does not know that the zeros it multiplies stand for “ignored”.",
    ),
    upstream(
        94700,
        'get NaN during backward of "nan_to_num"',
        "Closed. Asked for a gradient of 0 where nan_to_num has replaced a NaN. A maintainer: the NaN is the expected "
        "behaviour, with a pointer to pytorch#89543.",
        looked_up="2026-11-23",
    ),
    upstream(
        46849,
        "clip_grad_norm_ silently passes when not finite",
        "Closed. Asked for an exception. pytorch#53843 added error_if_nonfinite for it; pytorch#55169 switched it off "
        "by default.",
        looked_up="2026-11-23",
    ),
    upstream(
        19806,
        "RuntimeError: element 0 of tensors does not require grad and does not have a grad_fn",
        "Closed. A maintainer: questions belong in the forum.",
        looked_up="2026-11-23",
    ),
    upstream(
        31016,
        "Use mse and sgd, the gradient explode",
        "Closed. The asker: with Adam, or with another loss, nothing explodes. A maintainer: this may be no bug of "
        "PyTorch; asks for code that shows it, and points to the forum. No cause was found in the thread.",
        looked_up="2026-11-23",
    ),
    Thread(
        "transformers-13619",
        "transformers#13619",
        "[Trainer] Add nan/inf logging filter",
        "https://github.com/huggingface/transformers/pull/13619",
        "Closed: merged. It adds the option that keeps NaN and inf out of the log, for losses such as CTC's, which may "
        "be inf in one step. Its description calls the default False; in the Trainer of today it is True.",
        looked_up="2026-11-23",
    ),
    upstream(
        40497,
        "Mixed precision causes NaN loss",
        "Open. Several causes are reported: an epsilon that is 0 in float16, weights that are too small for float16, "
        "and a scale of GradScaler that falls too far. No decision was found.",
        looked_up="2026-11-23",
    ),
    upstream(
        41508,
        "nn.MultiheadAttention causes gradients to become NaN under some use cases",
        "Open, since 2020. A padding mask and a window leave a query without a key. scaled_dot_product_attention gives "
        "such a row 0 since pytorch#133882; two open pull requests of 2026, pytorch#189045 and pytorch#196170, do so "
        "where need_weights is True.",
        looked_up="2026-11-23",
    ),
    upstream(
        171327,
        "bceloss provides too huge grad. Imo, it's bad.",
        "Closed. The asker calls the gradient 1e12 correct but too large, and asks for no action. An answer advised to "
        "clip gradients. We did not find why it was closed.",
        looked_up="2026-11-23",
    ),
    upstream(
        87076,
        "Nandense layer for missing values",
        "Open. Asks for a layer that takes inputs with missing values. A maintainer answered that this might be an "
        "application for MaskedTensor.",
        looked_up="2026-11-23",
    ),
    upstream(
        124348,
        "[RFC] efficient nan-checker for distributed-collectives",
        "Closed. Asks for a check that stops the rank that first sees a NaN, before it communicates with other ranks. "
        "pytorch#125726 proposes it for NCCL, as TORCH_NCCL_NAN_CHECK; pytorch#191064 for every backend, as "
        "TORCH_DIST_NAN_CHECK.",
        looked_up="2026-11-23",
    ),
    upstream(
        6394,
        "chain rule will lead to Nan, sqrt() example",
        "Closed. A maintainer: sqrt has the derivative inf at 0, and where an expression is put together by hand not "
        "much can be done; the norm was given a subgradient of its own.",
    ),
    upstream(
        184572,
        "`torch.maximum` / `torch.clamp_min` gradients at tie point violate PyTorch's documented subgradient "
        "convention and are inconsistent with `F.relu`",
        "Closed, by pytorch#191142. With a number as the bound, the subgradient is 0; with a tensor, each side gets "
        "half.",
        looked_up="2026-11-23",
    ),
    Thread(
        "round-off",
        "Stack Overflow, 2018",
        "PyTorch gradient differs from manually calculated gradient",
        "https://stackoverflow.com/questions/53274587/pytorch-gradient-differs-from-manually-calculated-gradient",
        "Answered: both are rounded, each in its own way. pytorch#13886 asks the same, and was closed with a pointer "
        "to the forum.",
    ),
    upstream(
        38714,
        "RuntimeError: Function 'PowBackward1' returned nan values in its 1st output.",
        "Closed. A maintainer: anomaly mode raises this error because a NaN occurred; the author has to find out why "
        "the network computes NaN.",
        looked_up="2026-11-23",
    ),
)
"""Every thread, by the key of its case, in the order of the chapters."""
