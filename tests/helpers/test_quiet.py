import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.masked import masked_tensor

import helpers
from helpers.quiet import PROTOTYPE, quiet_prototype_warning, short_warnings

TEXT = "The PyTorch API of MaskedTensors is in prototype stage and will change in the near future."


@pytest.fixture(autouse=True)
def every_warning_is_an_error():
    with warnings.catch_warnings():
        warnings.resetwarnings()
        warnings.simplefilter("error")
        yield


def construct(**options):
    return masked_tensor(torch.ones(2, **options), torch.tensor([True, False]))


def test_upstream_still_warns_in_the_words_that_are_silenced():
    with pytest.raises(UserWarning, match=PROTOTYPE):
        construct()


def test_the_prototype_warning_is_silenced():
    quiet_prototype_warning()
    construct()
    (construct() + 1).sum()


def test_another_user_warning_is_not():
    quiet_prototype_warning()
    with pytest.raises(UserWarning, match="something else"):
        warnings.warn("something else", UserWarning, stacklevel=1)
    with pytest.raises(UserWarning, match="On "):
        warnings.warn("On " + TEXT, UserWarning, stacklevel=1)


@pytest.mark.parametrize("category", [DeprecationWarning, FutureWarning, RuntimeWarning])
def test_the_same_words_in_another_category_are_not(category):
    quiet_prototype_warning()
    with pytest.raises(category):
        warnings.warn(TEXT, category, stacklevel=1)


def test_the_other_warning_of_masked_tensors_is_not():
    quiet_prototype_warning()
    with pytest.raises(UserWarning, match="It is not recommended to create a MaskedTensor with a tensor that requires"):
        construct(requires_grad=True)


def test_importing_the_helpers_silences_it():
    script = (
        "import warnings; warnings.simplefilter('error'); import helpers, torch\n"
        "torch.masked.masked_tensor(torch.ones(1), torch.tensor([True]))\n"
        "try: warnings.warn('something else')\n"
        "except UserWarning: print('raised')\n"
    )
    home = str(Path(helpers.__file__).parents[1])
    # -W error would also meet the warnings that torch's own import gives in some versions.
    done = subprocess.run([sys.executable, "-c", f"import sys, torch; sys.path.insert(0, {home!r})\n" + script],
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "raised\n", "")


@pytest.fixture
def usual_form(monkeypatch):
    """The form of a warning as it was, put back afterwards."""
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    return warnings.formatwarning


def test_in_a_notebook_a_warning_is_its_category_and_text(monkeypatch, usual_form):
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    short_warnings()
    assert warnings.formatwarning(UserWarning("some text"), UserWarning, "/path/x.py", 3) == "UserWarning: some text\n"
    assert warnings.formatwarning("some text", FutureWarning, "/path/x.py", 3, "a = 1") == "FutureWarning: some text\n"


@pytest.mark.parametrize("shell", [None, SimpleNamespace()])
def test_elsewhere_a_warning_keeps_its_form(monkeypatch, usual_form, shell):
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    short_warnings()
    assert warnings.formatwarning is usual_form


def test_importing_the_helpers_in_a_notebook_shortens_warnings():
    home = str(Path(helpers.__file__).parents[1])
    script = (
        f"import sys, types, torch, warnings; sys.path.insert(0, {home!r})\n"
        "shell = types.SimpleNamespace(kernel=object())\n"
        "sys.modules['IPython'] = types.SimpleNamespace(get_ipython=lambda: shell)\n"
        "import helpers; print(warnings.formatwarning('text', UserWarning, 'x.py', 3))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "UserWarning: text")


def test_importing_the_helpers_outside_a_notebook_keeps_the_form_of_warnings():
    home = str(Path(helpers.__file__).parents[1])
    script = f"import sys, warnings; sys.path.insert(0, {home!r}); before = warnings.formatwarning; import helpers\n"
    done = subprocess.run([sys.executable, "-c", script + "assert warnings.formatwarning is before"], check=False)
    assert done.returncode == 0
