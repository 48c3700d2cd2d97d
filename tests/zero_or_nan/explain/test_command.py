"""`python -m zero_or_nan.explain`: a script runs as it would by itself, and is told of."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

import pytest

import zero_or_nan

HOME = str(Path(zero_or_nan.__file__).parents[1])

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


CALLS = {
    "good": Call(
        0, "import torch\ntorch.ones(2, requires_grad=True).sum().backward()\nprint('done')", "done\n", FINE
    ),
    "bad": Call(1, BAD + "print('done')", "done\n", REPORT),
    "arguments": Call(
        0, "import sys\nprint(sys.argv[1:], sys.argv[0].endswith('arguments.py'), __name__)",
        "['--json', '-m', 'a b'] True __main__\n", FINE, ("arguments.py", "--json", "-m", "a b"),
    ),
    "exit_0": Call(1, BAD + "raise SystemExit(0)", "", REPORT),
    "exit_3": Call(3, "raise SystemExit(3)", "", FINE),
    "exit_3_bad": Call(3, BAD + "raise SystemExit(3)", "", REPORT),
    "exit_text": Call(1, "raise SystemExit('no data')"),
    "exit_none": Call(0, "import sys\nsys.exit()", "", FINE),
    "raises": Call(1, BAD + "raise ValueError('mine')", "", REPORT),
    "interrupted": Call(-2, BAD + "raise KeyboardInterrupt", "", REPORT),
    "main": Call(
        0, "def main():\n    print('main', __name__, __file__[-7:])\nif __name__ == '__main__':\n    main()",
        "main __main__ main.py\n", FINE,
    ),
    "elsewhere": Call(1, "", "mine\n", ROOT, ("inner/uses_helpers.py",)),
    "module": Call(1, "", "['--epochs', '3'] __main__ package\n", REPORT, ("-m", "package.train", "--epochs", "3")),
    "a package": Call(0, "", "the package package\n", FINE, ("-m", "package")),
    "pickles": Call(
        0, "import pickle\nclass Mine:\n    pass\nprint(type(pickle.loads(pickle.dumps(Mine()))).__name__)",
        "Mine\n", FINE,
    ),
    "processes": Call(1, """
        import multiprocessing
        import torch
        def work(number):
            x = torch.tensor([float(number)], requires_grad=True)
            x.sqrt().sum().backward()
            return x.grad.item()
        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(pool.map(work, [1, 4]))
            work(0)
        """, "[0.5, 0.25]\n", ROOT),
    "loader": Call(0, """
        import torch
        class Data(torch.utils.data.Dataset):
            def __len__(self):
                return 4
            def __getitem__(self, at):
                return torch.tensor([float(at)])
        if __name__ == "__main__":
            w = torch.ones(1, requires_grad=True)
            for x in torch.utils.data.DataLoader(Data(), 2, num_workers=1):
                (w * x).sum().backward()
            print(w.grad.item())
        """, "6.0\n", FINE),
    "compiled": Call(1, """
        import torch
        def loss(x):
            return x.sqrt().sum()
        torch.compile(loss, backend="aot_eager")(torch.zeros(2, requires_grad=True)).backward()
        """, "", ROOT),
    "as_json": Call(1, BAD + "print('{}')", "{}\n", "", ("--json", "as_json.py")),
    "stop": Call(1, BAD + "print('not reached')", "", REPORT, ("--stop", "stop.py")),
    "cleaned": Call(
        1, "try:\n" + textwrap.indent(BAD, "    ") + "finally:\n    print('cleaned up')", "cleaned up\n", REPORT,
        ("--stop", "cleaned.py"),
    ),
    "ends at once": Call(5, BAD + "import os, sys\nsys.stdout.flush()\nos._exit(5)"),
    "not there": Call(2, arguments=("nothing.py",)),
    "no module": Call(1, arguments=("-m", "package.nothing")),
    "no script": Call(2, arguments=()),
}  # fmt: skip

FORKS = """
import gc, json, os, sys
import torch
from zero_or_nan.explain.__main__ import main
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
json.dump(told, open("told.json", "w"))
"""


class Ran(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Each script, by the command."""
    folder = tmp_path_factory.mktemp("scripts")
    calls = {name: [f"{name}.py"] if call.arguments is None else call.arguments for name, call in CALLS.items()}
    files = {f"{name}.py": textwrap.dedent(call.source) for name, call in CALLS.items() if call.source} | {
        "inner/uses_helpers.py": "import helpers, torch\nprint(helpers.WHOSE)\n"
        "helpers.loss(torch.zeros(1, requires_grad=True)).backward()",
        "inner/helpers.py": "WHOSE = 'mine'\ndef loss(x):\n    return x.sqrt().sum()\n",
        "package/__init__.py": "",
        "package/__main__.py": "print('the package', __package__)\n",
        "package/train.py": "import sys\nprint(sys.argv[1:], __name__, __package__)\n" + BAD,
        "calls.json": json.dumps(calls),
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    environment = {**os.environ, "PYTHONPATH": HOME, "OMP_NUM_THREADS": "1"}
    alone = [sys.executable, "-m", "zero_or_nan.explain", "bad.py"]
    by_itself = subprocess.run(alone, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    subprocess.run([sys.executable, "-c", FORKS], cwd=folder, env=environment, check=True, timeout=300)
    told = json.loads((folder / "told.json").read_text())
    return {name: Ran(*told[name]) for name in CALLS} | {
        "by itself": Ran(by_itself.returncode, by_itself.stdout, by_itself.stderr)
    }


def test_as_the_shell_runs_it(ran):
    assert ran["by itself"] == ran["bad"]


@pytest.mark.parametrize("name", CALLS)
def test_a_script_runs_as_by_itself_and_is_told_of(ran, name):
    call, (status, out, error) = CALLS[name], ran[name]
    assert status == call.status, out + error
    assert out.startswith(call.prints) and call.report in out, out + error
    if call.report == FINE and not status:
        assert not error
    if call.report == ROOT:
        assert "undefined" in out


def test_json(ran):
    told = json.loads(ran["as_json"].stdout.removeprefix("{}\n"))
    assert [origin["kind"] for origin in told["origins"]] == ["contaminated"] and told["ok"] is False


def test_errors(ran):
    """A traceback shows the script's frames, and none of the command's."""
    told = ran["raises"].stderr
    assert told.endswith("ValueError: mine\n") and "raises.py" in told
    assert "zero_or_nan" not in told and "runpy" not in told
    assert ran["interrupted"].stderr.endswith("KeyboardInterrupt\n")
    assert ran["exit_text"].stderr == "no data\n"
    assert "not reached" not in ran["stop"].stdout and not ran["stop"].stderr
    assert "there is no file" in ran["not there"].stderr
    assert "package.nothing" in ran["no module"].stderr
