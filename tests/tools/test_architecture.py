"""ARCHITECTURE.md lists the files that two calls enter, and names files that exist."""

import os
import re
import sys

import torch
from scratch import ROOT

import zero_or_nan
from zero_or_nan import explain, ignoring

TEXT = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
LIBRARY = os.path.dirname(zero_or_nan.__file__)


def entered(work):
    """The files of the library that a call enters, in order. The first run also fills caches, so the second counts."""
    work()
    files: dict[str, None] = {}

    def note(frame, event, argument):
        if event == "call" and frame.f_code.co_filename.startswith(LIBRARY):
            files.setdefault(os.path.relpath(frame.f_code.co_filename, LIBRARY))

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return list(files)


def where_over_exp():
    x = torch.tensor([1.0, 100.0], requires_grad=True)
    ignoring.backward(torch.where(x < 50, x.exp(), torch.zeros(2)).sum())


def sqrt_at_0():
    x = torch.tensor([1.0, 0.0], requires_grad=True)
    with explain() as report:
        x.sqrt().sum().backward()
    str(report)


def test_the_two_calls_enter_the_files_that_the_page_lists():
    sections = re.split(r"^##+ ", TEXT, flags=re.MULTILINE)
    for call, work in (("`ignoring.backward`", where_over_exp), ("`explain`", sqrt_at_0)):
        (section,) = (section for section in sections if section.startswith(call))
        assert re.findall(r"^\| `(\S+\.py)` \|", section, re.MULTILINE) == entered(work)


def test_each_file_that_the_page_names_exists():
    for name in re.findall(r"`([\w./]+(?:\.py|/))`", TEXT):
        assert any((folder / name).exists() for folder in (ROOT, ROOT / "src" / "zero_or_nan")), name
