"""Names, records and rules that `function` and `rule` take and refuse, in each release of PyTorch."""

import importlib
from contextlib import nullcontext

import pytest
import torch
from telling import ByOperators

from zero_or_nan import functions, ignoring
from zero_or_nan.functions import registry
from zero_or_nan.functions.registry import NEWEST
from zero_or_nan.ignoring import FUNCTIONS

pytestmark = pytest.mark.usefixtures("registries_as_before")


REFUSED = {
    "no operator nothing::here; define it before its record": lambda: ignoring.function("nothing::here"),
    "no operator nothing::here": lambda: ignoring.rule("nothing::here"),
    "no node is called NoSuchBackward0": lambda: ignoring.function("NoSuch"),
    "slects": lambda: ignoring.function(ByOperators, slects=True),
    "neither the name of a function nor a subclass": lambda: ignoring.function(torch.nn.Linear),
    "rule takes names of operators": lambda: ignoring.rule(torch.ops.aten.mul),
    "rule takes names of operator": lambda: ignoring.rule(),
    "'FINITE' is not a condition; use ignoring.ALWAYS": lambda: ignoring.function(ByOperators, safe_if="FINITE"),
    "Exp has a record already": lambda: ignoring.function("Exp"),
    "aten._values has a rule for sparse gradients already": lambda: ignoring.rule("_values")(print),
    "aten::mul has a rule already: mul": lambda: ignoring.rule("mul"),
}  # fmt: skip


@pytest.mark.parametrize("words", REFUSED)
def test_what_is_no_name_or_has_a_record_already_is_refused(words):
    with pytest.raises((TypeError, ValueError), match=words):
        REFUSED[words]()
    assert ByOperators not in FUNCTIONS


NEW = f"2.{NEWEST[1]}.0", f"2.{NEWEST[1] + 1}.0"


@pytest.mark.parametrize(
    ("release", "names", "refused"),
    [
        *((release, {"since": "2.13"}, True) for release in ("2.13.0", "2.13.1", NEW[0])),
        *((release, {"since": "2.13"}, False) for release in ("2.12.0", NEW[1])),  # the newest may have no such name
        *((release, {"since": "2.9", "until": "2.10"}, True) for release in ("2.9.0", "2.10.0")),
        *((release, {"since": "2.9", "until": "2.10"}, False) for release in ("2.8.0", "2.11.0")),
    ],
)
def test_a_name_that_pytorch_lacks_is_refused_in_the_releases_that_are_said_to_have_it(
    release, names, refused, monkeypatch
):
    monkeypatch.setattr(torch, "__version__", release)
    words = "until='…' if newer ones do" if "until" in names else f"in PyTorch {release}"
    for register in (ignoring.function, ignoring.rule):
        with pytest.raises(ValueError, match=words) if refused else nullcontext():
            register("NoSuch", **names)


@pytest.mark.parametrize("release, selects", [("2.15.0", False), ("2.16.0", True)])
def test_a_function_has_one_record_before_a_release_and_another_one_from_it_on(release, selects, monkeypatch):
    monkeypatch.delitem(FUNCTIONS, "Exp")
    monkeypatch.setattr(torch, "__version__", release)
    ignoring.function("Exp", until="2.15")
    ignoring.function("Exp", since="2.16", selects=True)
    assert FUNCTIONS["Exp"].selects == selects


def test_a_name_that_a_newer_release_lacks_is_reported_when_the_library_is_imported(monkeypatch):
    monkeypatch.setattr(torch, "__version__", NEW[1])
    monkeypatch.setattr(registry, "MISSING", [])
    ignoring.function("NoSuch")
    with pytest.warns(UserWarning, match="no node is called NoSuchBackward0. PyTorch may have renamed them"):
        importlib.reload(functions)


def test_what_rules_are_written_with_is_public_where_rule_is():
    described = "Cotangent unwrap mask_of zero_ignored prefer_exact NotFollowed Function".split()
    assert {*described, "FINITE", "ALWAYS"} <= set(ignoring.__all__)
    assert all(getattr(ignoring, name).__doc__ for name in described)
