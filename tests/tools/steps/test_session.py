"""How a kernel begins: alike in every build, whoever builds, and with nothing for a page to rely on."""

import warnings

import pytest
import torch
from scratch import Book
from torch.masked import masked_tensor

from tools.project import Project
from tools.steps.execute import cached
from tools.steps.session import quiet

TEXT = "The PyTorch API of MaskedTensors is in prototype stage and will change in the near future."
CELL = """\
import warnings
import os
import torch
before = {name for name in globals() if not name.startswith("_")} - set(dir(__builtins__))
torch.masked.masked_tensor(torch.ones(2), torch.tensor([True, False]))
warnings.warn("something else")
print("names:", sorted(before - {"In", "Out", "exit", "quit", "get_ipython", "open"}))
print("threads:", os.environ["OMP_NUM_THREADS"])"""


@pytest.fixture(autouse=True)
def restored(monkeypatch):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
        yield


def construct():
    return masked_tensor(torch.ones(2), torch.tensor([True, False]))


def test_the_prototype_warning_is_silenced_and_upstream_still_gives_it():
    with pytest.raises(UserWarning, match="prototype"):
        construct()
    quiet()
    construct()
    (construct() + 1).sum()


@pytest.mark.parametrize(
    "text, category", [("something else", UserWarning), ("On " + TEXT, UserWarning), (TEXT, FutureWarning)]
)
def test_no_other_warning_is(text, category):
    quiet()
    with pytest.raises(category):
        warnings.warn(text, category, stacklevel=1)


def test_a_warning_is_its_category_and_text():
    quiet()
    assert warnings.formatwarning(UserWarning("some text"), UserWarning, "/path/x.py", 3) == "UserWarning: some text\n"
    assert warnings.formatwarning("some text", FutureWarning, "/path/x.py", 3, "a = 1") == "FutureWarning: some text\n"


@pytest.mark.parametrize("plain", [False, True], ids=["make check", "jupyter-book build"])
def test_every_build_begins_its_kernels_so_and_without_the_settings_of_whoever_builds(tmp_path, monkeypatch, plain):
    mine = tmp_path / "mine" / "profile_default" / "startup" / "mine.py"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine = 1\nimport warnings; warnings.simplefilter('error')\n", encoding="utf-8")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "mine"))
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    book = Book(tmp_path / "book", {"one": [CELL]})
    done = book.jupyter_book() if plain else book.run("check")
    assert done.returncode == 0, done.stdout + done.stderr
    (notebook,) = cached(Project(book.root)).values()
    text = "\n".join("".join(output["text"]) for cell in notebook["cells"] for output in cell.get("outputs", []))
    assert "UserWarning: something else" in text and "names: ['os', 'torch', 'warnings']" in text
    assert "threads: 1\n" in text
    assert "prototype" not in text and str(tmp_path) not in text
