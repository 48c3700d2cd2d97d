"""The public threads that the book reproduces: looked up, dated, and written down in this one place."""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import Any

LOOKED_UP = "2026-11-22"
"""The day on which titles, states and decisions below were read, in stored copies of the threads."""


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
        """A card: what the thread is called, where it is, how it stands; `more` is HTML for a last line."""
        return (
            f'<div class="zn-claim"><p>{self.link()}: {html.escape(self.title)}</p>'
            f"<p>{html.escape(self.state)} <span class='zn-note'>(looked up {self.looked_up})</span></p>{more}</div>"
        )

    def link(self) -> str:
        """Its label, as HTML, which leads to it."""
        return f'<a href="{html.escape(self.url, quote=True)}">{html.escape(self.label)}</a>'

    def json(self) -> dict[str, Any]:
        return {"type": "thread", "case": self.key, "title": self.title, "url": self.url}


def thread(key: str) -> Thread:
    """The thread of a case.

    Raises:
        KeyError: naming the cases that exist.

    >>> thread("4132").title
    'x.grad should be 0 but get NaN after x/0'
    """
    if key not in THREADS:
        raise KeyError(
            f"no case has the key {key!r}; known: {', '.join(THREADS)}. A new one is a line in helpers/threads.py"
        )
    return THREADS[key]


def upstream(number: int, title: str, state: str, kind: str = "issues") -> Thread:
    """An issue of PyTorch's, or of another `kind`: `"pull"`."""
    url = f"https://github.com/pytorch/pytorch/{kind}/{number}"
    return Thread(str(number), f"pytorch#{number}", title, url, state, number)


_ALL = (
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
        "Closed. Asked for a zero gradient wherever clamp cuts off, for inf too; the decision behind the closing was "
        "not found.",
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
        "Closed. The thread points to MaskedTensor; the decision behind the closing was not found.",
    ),
    upstream(
        4132,
        "x.grad should be 0 but get NaN after x/0",
        "Open. The asker's advice in the thread: let no inf arise in the forward pass; the newest, of 2025: a backward "
        "hook. PyTorch's autograd notes now explain the case, and name masking before the division, or MaskedTensor.",
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
        "Answered: expected. Autograd no longer knows that the zeros it multiplies stand for “ignored”.",
    ),
    upstream(
        6394,
        "chain rule will lead to Nan, sqrt() example",
        "Closed. A maintainer: sqrt has the derivative inf at 0, and where an expression is put together by hand not "
        "much can be done; the norm was given a subgradient of its own.",
    ),
    Thread(
        "round-off",
        "Stack Overflow, 2018",
        "PyTorch gradient differs from manually calculated gradient",
        "https://stackoverflow.com/questions/53274587/pytorch-gradient-differs-from-manually-calculated-gradient",
        "Answered: both are rounded, each in its own way. pytorch#13886 asks the same, and was closed with a pointer "
        "to the forum.",
    ),
    Thread(
        "31016",
        "pytorch#31016",
        "Use mse and sgd, the gradient explode",
        "https://github.com/pytorch/pytorch/issues/31016",
        "Closed. The asker: with Adam, or with another loss, nothing explodes. A maintainer: this may be no bug of "
        "PyTorch; asks for code that shows it, and points to the forum. No cause was found in the thread.",
        31016,
        "2026-11-23",
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
)
THREADS: dict[str, Thread] = {entry.key: entry for entry in _ALL}
"""Every thread, by the key of its case, in the order of the chapters."""
