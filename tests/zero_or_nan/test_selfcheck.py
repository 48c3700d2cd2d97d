"""The reader's own check: each kind of difference is found, the rest goes on, and the output can be relied on."""

import itertools
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from helpers.entries import Entries, outcome
from helpers.verdict import JUDGEMENTS, judge
from zero_or_nan import ignoring
from zero_or_nan.selfcheck import __main__ as command
from zero_or_nan.selfcheck import cases, checking, poisoned, report, words

CPU = torch.device("cpu")
EXP, SLICED, ROUNDED = "where over exp", "rows sliced after a linear layer", "1 / x, rounded as plain PyTorch rounds"
CASES = {case.name: case for case in cases.CASES}
PLAIN = torch.autograd.grad
pytestmark = pytest.mark.usefixtures("quick_samples")


@pytest.fixture
def few(monkeypatch):
    """Three cases and two operators, in the place of all."""
    monkeypatch.setattr(checking, "CASES", [CASES[EXP], CASES[SLICED], CASES[ROUNDED]])
    monkeypatch.setattr(checking, "OPERATORS", ["exp", "mm"])


@pytest.fixture
def checked(few, capsys):
    """Run the command on the CPU as JSON: its exit status, and what it finds."""

    def run():
        status = command.main(["--device", "cpu", "--json"])
        content = json.loads(capsys.readouterr().out)
        return status, [(each["kind"], each["name"], each["method"]) for each in content["differences"]], content

    return run


def unmasked(op, *args, **kwargs):
    """A rule that forgets what was ignored."""
    return ignoring.Cotangent(op(*ignoring.unwrap(args), **kwargs))


@pytest.mark.slow
def test_the_json_says_that_all_is_as_recorded_and_nothing_of_whose_machine_it_is(capsys):
    status = command.main(["--device", "cpu", "--json"])
    printed = capsys.readouterr().out
    content = json.loads(printed)
    keys = "versions device recorded_with lacking cases operators operators_left_out differences"
    assert list(content) == keys.split()
    assert content["differences"] == [] and status == 0, printed
    assert [row["name"] for row in content["cases"]] == list(CASES)
    assert [row["name"] for row in content["operators"]] == checking.OPERATORS
    for row in content["operators"]:
        assert row["samples"] >= row["contaminated"] == row["fixed"] > 0 == row["broken"] == row["other_bits"]
    assert content["versions"]["torch"] == torch.__version__
    assert list(content["versions"]) == ["zero_or_nan", "torch", "python", "platform"]
    assert content["device"]["type"] == "cpu" and content["device"]["name"]
    assert {tuple(row) for row in content["cases"]} == {("name", "thread", "ulps", "plain", "ignoring", "recorded")}
    assert {tuple(row) for row in content["operators"]} == {("name", "plain", "ignoring", "recorded", *report.COUNTS)}
    assert not any(name in printed for name in (os.uname().nodename, str(Path.home()), sys.prefix))


def crash(*args, **kwargs):
    raise RuntimeError


def an_ulp_off(*args, grad=ignoring.grad, **kwargs):
    return [torch.nextafter(g, torch.zeros_like(g)) for g in grad(*args, **kwargs)]


EVERY = {EXP, SLICED, ROUNDED, "exp", "mm"}
BREAKS = {
    "a rule that forgets": (
        lambda patch: [patch.setitem(ignoring.RULES, op, unmasked) for op in (torch.ops.aten.mul, torch.ops.aten.mm)],
        EVERY - {ROUNDED}, {"contaminated"},
    ),
    "a missing rule": (
        lambda patch: patch.delitem(ignoring.RULES, torch.ops.aten.mm), {SLICED, "mm"}, {"not followed"},
    ),
    "a wrong gradient": (
        lambda patch: patch.setattr(ignoring, "grad", lambda *args, **given: [2 * g for g in PLAIN(*args, **given)]),
        EVERY, {"wrong", "contaminated"},
    ),
    "other bits than plain PyTorch's": (
        lambda patch: patch.setattr(ignoring, "grad", an_ulp_off), EVERY, {"other bits"},
    ),
}  # fmt: skip


@pytest.mark.usefixtures("by_rules_alone")
@pytest.mark.parametrize("name", BREAKS)
def test_what_is_broken_here_is_found_and_nothing_else(checked, monkeypatch, name):
    breaks, names, observed = BREAKS[name]
    breaks(monkeypatch)
    status, found, content = checked()
    assert status == 1 and sorted(found) == sorted(("broken here", name, "ignoring") for name in names)
    assert {each["observed"] for each in content["differences"]} == observed


def test_bits_that_plain_pytorch_does_not_keep_itself_are_not_asked_for(monkeypatch):
    def unsteady(*args, **kwargs):
        return [g * (1 + 2e-7 * next(count)) for g in PLAIN(*args, **kwargs)]

    count = itertools.count(1)
    monkeypatch.setattr(checking.torch.autograd, "grad", unsteady)
    for name in ("gather of square roots", "gradient argument of backward"):
        assert checking.ask_case(CASES[name], CPU).ignoring != "other bits"


def test_plain_pytorch_that_is_right_now_is_fixed_upstream(checked, monkeypatch):
    def double_where(device):
        before = CASES[EXP].set_up(device)
        (x,) = before.leaves
        safe = torch.where(x < 0, x, 0 * x)
        return replace(before, outputs=torch.where(x < 0, safe.exp(), torch.ones_like(x)).sum())

    def run(method, *args):
        return real(ignoring.grad if method is PLAIN else method, *args)

    real = poisoned.run
    monkeypatch.setattr(checking, "CASES", [replace(CASES[EXP], set_up=double_where), CASES[SLICED]])
    monkeypatch.setattr(poisoned, "run", run)
    status, found, _ = checked()
    assert (status, found) == (1, [("fixed upstream", name, "plain") for name in (EXP, "exp", "mm")])


def test_a_crash_or_an_operator_that_is_gone_is_a_difference_and_the_rest_goes_on(checked, monkeypatch):
    """Plain PyTorch can't do it either, so ours is not called broken."""
    ask = checking.tally_of
    monkeypatch.setattr(checking, "CASES", [replace(CASES[EXP], set_up=crash), CASES[SLICED]])
    monkeypatch.setattr(checking, "OPERATORS", ["exp", "mm", "sqrt"])
    monkeypatch.setattr(checking, "database", lambda: [op for op in poisoned.database() if op.name != "mm"])
    monkeypatch.setattr(checking, "tally_of", lambda op, device: (crash if op.name == "exp" else ask)(op, device))
    status, found, content = checked()
    assert (status, found) == (1, [("changed upstream", name, "plain") for name in (EXP, "exp", "mm")])
    observed = [each["observed"] for each in content["differences"]]
    assert observed == ["raises RuntimeError", "raises RuntimeError", "no sample"]
    assert content["cases"][1]["ignoring"] == content["operators"][2]["ignoring"] == "right"


@pytest.mark.parametrize(
    "error, told",
    [
        (ModuleNotFoundError("No module named 'numpy'", name="numpy"), "needs numpy, which is not installed"),
        (ImportError("cannot import name 'x' from /home/me/y.py"), "can't be imported (ImportError)"),
    ],
)
def test_without_the_database_the_cases_still_run(few, monkeypatch, capsys, error, told):
    def fail():
        raise error

    monkeypatch.setattr(checking, "database", fail)
    assert command.main(["--device", "cpu"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "All 3 as recorded. The operators were left out: " in printed and told in printed


def test_what_it_prints_fits_into_80_columns_and_says_what_to_do(few, monkeypatch, capsys):
    assert command.main(["--device", "cpu"]) == 0
    good = capsys.readouterr().out
    assert good.endswith("\nAll 5 as recorded.\n")
    monkeypatch.setattr(ignoring, "grad", crash)
    assert command.main(["--device", "cpu"]) == 1
    bad = capsys.readouterr().out
    assert "\n  broken here: ignoring is raises RuntimeError, recorded is right\n" in bad
    assert "\nNot as recorded: 5 broken here. Please report it at\nhttps://" in bad and "/issues/new, with" in bad
    assert max(map(len, (good + bad).splitlines())) <= 80
    assert all(len(each) <= 40 for each in (*CASES, *checking.OPERATORS))


def test_what_a_library_prints_stays_out_of_the_json_and_ctrl_c_ends_it(few, monkeypatch, capfd):
    def loud(device):
        os.write(1, b"Intel oneMKL ERROR\n")
        raise KeyboardInterrupt

    monkeypatch.setattr(checking, "CASES", [replace(CASES[EXP], set_up=loud)])
    assert command.main(["--device", "cpu", "--json"]) == 130
    printed = capfd.readouterr()
    assert printed.out == "" and printed.err == "Intel oneMKL ERROR\n\ninterrupted\n"


def test_a_device_that_is_not_here_is_wrong_use(capsys):
    for name in ("meta", "nonsense"):
        with pytest.raises(SystemExit, match="2"):
            command.main(["--device", name])
        told = capsys.readouterr()
        assert told.out == "" and f"no device {name!r} here" in told.err and "use --device " in told.err


def test_the_default_is_an_accelerator_where_there_is_one(monkeypatch):
    for kind in ("cuda", "mps", "xpu"):
        monkeypatch.setattr(getattr(torch, kind), "is_available", lambda: False)
    assert command.accelerator() is None
    monkeypatch.setattr(torch.mps, "is_available", lambda: True)
    assert command.accelerator() == "mps"


@pytest.mark.parametrize(
    "version, nearest",
    [("2.6.0+cu124", "2.6"), ("2.13.1", "2.13"), ("3.0.0a0+git1234567", "2.15"), ("2.5.1", "2.6")],
)
def test_a_version_is_compared_with_the_nearest_record_and_told_so(version, nearest):
    made = report.Comparison(torch.device("mps"), version)
    told = " ".join(made.head().split())
    assert f"recorded with torch {nearest} on a CPU" in told and "nothing was recorded on mps" in told
    own = version.startswith(f"{nearest}.")
    assert (f"the nearest to {version.split('+')[0]} of which there is a record" in told) is not own


def test_what_only_the_cpu_must_have_is_a_difference_there_alone():
    absent = checking.Row("exp", checking.NO_SAMPLE, checking.NO_SAMPLE)
    lost = checking.Row("exp", "contaminated", checking.NOT_FOLLOWED)
    broken = checking.Row("exp", "contaminated", "wrong")
    kinds = ["changed upstream"], ["broken here"], ["broken here"]
    for row, on_cpu, on_cuda in zip((absent, lost, broken), kinds, ([], [], ["broken here"]), strict=True):
        assert [each.kind for each in report.differences(row, "cpu")] == on_cpu
        assert [each.kind for each in report.differences(row, "cuda")] == on_cuda


@pytest.mark.parametrize("error, elsewhere", [(TypeError, "no sample"), (RuntimeError, "raises RuntimeError")])
def test_what_another_device_lacks_could_not_be_asked(monkeypatch, error, elsewhere):
    def fail(op, device):
        raise error

    monkeypatch.setattr(checking, "tally_of", fail)
    words = [checking.ask_operator("exp", object(), torch.device(name)).plain for name in ("mps", "cpu")]
    assert words == [elsewhere, f"raises {error.__name__}"]


def test_a_gradient_is_called_by_the_words_of_the_book():
    nan, inf = torch.nan, torch.inf
    numbers = (0.0, 1.0, 1.0 + 1e-6, 1.0 + 3e-6, 1.5, nan, inf, -inf)
    for got, want, used in itertools.product(numbers, (0.0, 1.0, nan, inf), (True, False)):
        wanted, gradient = torch.tensor([want], dtype=torch.float64), torch.tensor([got])
        ours = words.word(gradient, words.Reference(wanted, torch.tensor([used])))
        (theirs,) = judge(Entries(wanted, torch.tensor([used])), outcome(gradient), words.ULPS)
        assert ours == theirs, (got, want, used)
    assert words.word(None, words.Reference(torch.ones(1), torch.ones(1) > 0)) == "missing"
    assert set(words.WORDS) == set(JUDGEMENTS)
