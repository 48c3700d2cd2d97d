"""What the words of a pasted text say about the page that answers it, learned from texts whose pages are known.

For each page, a logistic regression on words and pairs of words says how probable it is that the page answers a text.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F

PENALTY = 0.1
"""How much large weights cost, relative to one text."""

STEPS = 100
"""How many steps the optimizer takes. More change no weight by a tenth."""

LEAST = 0.3
"""Smaller weights are left out: they are most of all, and decide nothing."""


def terms_of(text: str) -> set[str]:
    """The words of a text, without numbers and signs, and the pairs of words that follow each other.

    >>> sorted(terms_of("loss: nan, Loss 0.7"))
    ['loss', 'loss nan', 'nan', 'nan loss']
    """
    words = re.findall(r"[a-z]+", text.lower())
    return {*words, *map(" ".join, pairwise(words))}


def learned(texts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The weights of terms for pages, from texts that have the fields `text` and `expect`, a list of pages.

    Returns:
        pages: the pages, and "" for no page.
        bias: a number for each page.
        terms: for each term that at least two texts have, its weights, as pairs of the page's position and a number.
    """
    found = [terms_of(each["text"]) for each in texts]
    terms = sorted(term for term, count in Counter(term for each in found for term in each).items() if count > 1)
    pages = sorted({page for each in texts for page in each["expect"] or [""]})
    place = {term: at for at, term in enumerate(terms)}
    given = torch.zeros(len(texts), len(terms), dtype=torch.float64)
    wanted = torch.tensor([[page in (each["expect"] or [""]) for page in pages] for each in texts]).double()
    for row, each in zip(given, found, strict=True):
        row[[place[term] for term in each if term in place]] = 1
    given = F.normalize(given, dim=1)
    # There are more terms than texts, so the same problem has fewer unknowns in the space that the texts span.
    left, scale, right = torch.linalg.svd(given, full_matrices=False)
    seen = left * scale
    inside = torch.zeros(len(scale), len(pages), dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(len(pages), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([inside, bias], max_iter=STEPS, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        cost = F.binary_cross_entropy_with_logits(seen @ inside + bias, wanted, reduction="sum")
        total = cost + PENALTY / 2 * inside.square().sum()
        total.backward()
        return total

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the products are small
    optimizer.step(loss)
    torch.set_num_threads(threads)
    weights = right.T @ inside.detach()
    rows = [[[at, round(each, 1)] for at, each in enumerate(row) if abs(each) >= LEAST] for row in weights.tolist()]
    return {
        "pages": pages,
        "bias": [round(each, 2) for each in bias.tolist()],
        "terms": dict(zip(terms, rows, strict=True)),
    }
