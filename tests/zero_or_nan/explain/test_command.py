"""`python -m zero_or_nan.explain`: a script runs as it would by itself, and is told of."""

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

import pytest

import zero_or_nan

BAD = """
import torch
x = torch.tensor([1.0, 100.0], requires_grad=True)
torch.where(x < 50, x.exp(), x * 0).sum().backward()
"""

FINE, REPORT, ROOT = "nothing that is not finite", "contaminated: exp(100) > 3.4e38", "sqrt().sum()"


class Call(NamedTuple):
    """What is run, and what is expected: the exit status, how the output begins, and what the report holds."""

    status: int
    source: str = ""
    prints: str = ""
    report: str = ""
    arguments: tuple[str, ...] | None = None
    error: str = ""


CALLS = {
    "good": Call(
        0, "import torch\ntorch.ones(2, requires_grad=True).sum().backward()\nprint('done')", "done\n", FINE
    ),
    "main": Call(
        0, """
        import os, pickle, sys
        class Mine:
            pass
        if __name__ == '__main__':
            print(sys.argv[1:], os.path.isabs(__file__), type(pickle.loads(pickle.dumps(Mine()))).__name__)
        """,
        "['--json', '-m', 'a b'] True Mine\n", FINE, ("main.py", "--json", "-m", "a b"),
    ),
    # What the compiler replaces as it is imported would stay, with what a block has put there.
    "no compiler": Call(
        1, """
        import sys
        import torch
        from zero_or_nan import ignoring
        x = torch.tensor([1.0, torch.nan], requires_grad=True)
        (torch.nn.Linear(2, 1)(x[None]) * 0).log().sum().backward()
        ignoring.backward(x.clone()[:, None].amax(1)[:1].sum())  # a derivative that compares
        print("torch._dynamo" in sys.modules)
        """,
        "False\n", "bad input: ",
    ),
    "no output": Call(
        0, "import sys, torch\nsys.stdout = None\ntorch.ones(2, requires_grad=True).sum().backward()", "", ""
    ),
    "closed": Call(1, "import sys\n" + BAD + "sys.stdout.close()", "", ""),
    "nowhere": Call(
        1, "import os, tempfile\n" + BAD + "gone = tempfile.mkdtemp()\nos.chdir(gone)\nos.rmdir(gone)", "", REPORT
    ),
    "exit_text": Call(1, "raise SystemExit('no data')", "", FINE, error="no data\n"),
    "raises": Call(1, BAD + "raise ValueError('mine')", "", REPORT, error="ValueError: mine\n"),
    "own_hook": Call(
        1, "import sys\nsys.excepthook = lambda *a: print('hook', a[1])\nraise ValueError('mine')", "hook mine\n", FINE
    ),
    "interrupted": Call(-2, BAD + "raise KeyboardInterrupt", "", REPORT, error="KeyboardInterrupt\n"),
    "elsewhere": Call(1, "", "mine\n", ROOT, ("inner/uses_helpers.py",)),
    "module": Call(1, "", "['--epochs', '3'] __main__ package\n", REPORT, ("-m", "package.train", "--epochs", "3")),
    "as_json": Call(1, BAD + "print('{}')", "{}\n", '"kind": "contaminated"', ("--json", "as_json.py")),
    "stop": Call(
        1, "try:\n" + textwrap.indent(BAD, "    ") + "    print('not reached')\nfinally:\n    print('cleaned up')",
        "cleaned up\n", REPORT, ("--stop", "stop.py"),
    ),
    "again": Call(
        1, """
        import torch
        x = torch.tensor([0.0, 4.0], requires_grad=True)
        print('once')
        y = torch.log(x.relu() - x).sum()
        z = torch.log(torch.rand(1) - 2).sum()
        (y + z * x.sum()).backward()
        """,
        "once\n2 origins", "the script, run again with this line, has another origin: undefined: log(-",
        ("--again", "again.py"),
    ),
    "again elsewhere": Call(
        1, "", "mine\n", "the script, run again with this line, has a finite loss and finite gradients\n",
        ("--again", "inner/uses_helpers.py"),
    ),
    "not there": Call(2, arguments=("nothing.py",), error="there is no file 'nothing.py'\n"),
}  # fmt: skip

FORKS = """
import gc, json, os, sys
import torch
import zero_or_nan.explain
frameworks = ["transformers", "pytorch_lightning", "lightning", "lightning.pytorch"]
imported = [name for name in sys.modules if name in frameworks or name.startswith("zero_or_nan.selfcheck")]
from zero_or_nan.explain.__main__ import main
with zero_or_nan.explain() as report:
    (torch.zeros(1, requires_grad=True) * 1.0).log().sum().backward()
str(report)  # what a report imports is imported once
gc.freeze()  # a child has less to clean up
told = {}
for name, arguments in json.load(open("calls.json")).items():
    with open(name + ".out", "w+") as out, open(name + ".err", "w+") as err:
        child = os.fork()  # PyTorch is imported once
        if not child:
            os.dup2(out.fileno(), 1), os.dup2(err.fileno(), 2)
            sys.path[0] = ""
            sys.exit(main(arguments))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        told[name] = status, open(name + ".out").read(), open(name + ".err").read()
sys.modules.update(dict.fromkeys(frameworks))  # as if they were not installed
for name in ("huggingface", "lightning"):
    try:
        __import__("zero_or_nan.explain." + name)
    except ImportError as error:
        imported.append(str(error))
json.dump([told, imported], open("told.json", "w"))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What each call printed, and what was imported and missed."""
    folder = tmp_path_factory.mktemp("scripts")
    calls = {name: [f"{name}.py"] if call.arguments is None else call.arguments for name, call in CALLS.items()}
    files = {f"{name}.py": textwrap.dedent(call.source) for name, call in CALLS.items()} | {
        "inner/uses_helpers.py": "import helpers, torch\nprint(helpers.WHOSE)\n"
        "helpers.loss(torch.zeros(1, requires_grad=True)).backward()",
        "inner/helpers.py": "WHOSE = 'mine'\ndef loss(x):\n    return x.sqrt().sum()\n",
        "package/__init__.py": "",
        "package/train.py": "import sys\nprint(sys.argv[1:], __name__, __package__)\n" + BAD,
        "calls.json": json.dumps(calls),
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    environment = {**os.environ, "PYTHONPATH": str(Path(zero_or_nan.__file__).parents[1])}
    command = [sys.executable, "-c", FORKS]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert not done.returncode, done.stderr
    return json.loads((folder / "told.json").read_text())


@pytest.mark.parametrize("name", CALLS)
def test_a_script_runs_as_by_itself_and_is_told_of(told, name):
    call, (status, out, error) = CALLS[name], told[0][name]
    assert status == call.status, out + error
    assert out.startswith(call.prints) and call.report in out, out + error
    assert error.endswith(call.error) and bool(error) == bool(call.error)
    if call.report == ROOT:
        assert "undefined" in out
    if name == "raises":
        assert "raises.py" in error and "zero_or_nan" not in error and "runpy" not in error
    if name == "again":
        assert len(re.findall(r"log\(-1\.\d+", out)) > 1 == len(set(re.findall(r"log\(-1\.\d+", out)))
    if name == "as_json":
        assert json.loads(out.removeprefix(call.prints))["ok"] is False


def test_no_framework_is_imported_and_a_callback_says_which_one_it_needs(told):
    """The library needs PyTorch alone, and imports no self-check."""
    assert told[1] == [
        "zero_or_nan.explain.huggingface needs transformers: run pip install transformers",
        "zero_or_nan.explain.lightning needs Lightning: run pip install lightning",
    ]
