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

SCRIPTS = {
    "good": "import torch\ntorch.ones(2, requires_grad=True).sum().backward()\nprint('done')",
    "bad": BAD + "print('done')",
    "arguments": "import sys\nprint(sys.argv[1:], sys.argv[0].endswith('arguments.py'), __name__)",
    "exit_0": BAD + "raise SystemExit(0)",
    "exit_3": "raise SystemExit(3)",
    "exit_3_bad": BAD + "raise SystemExit(3)",
    "exit_text": "raise SystemExit('no data')",
    "exit_none": "import sys\nsys.exit()",
    "raises": BAD + "raise ValueError('mine')",
    "interrupted": BAD + "raise KeyboardInterrupt",
    "main": "def main():\n    print('main', __name__, __file__[-7:])\nif __name__ == '__main__':\n    main()",
    "uses_helpers": """
        import helpers, torch
        print(helpers.WHOSE)
        helpers.loss(torch.zeros(1, requires_grad=True)).backward()
        """,
    "pickles": "import pickle\nclass Mine:\n    pass\nprint(type(pickle.loads(pickle.dumps(Mine()))).__name__)",
    "processes": """
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
        """,
    "loader": """
        import torch
        class Data(torch.utils.data.Dataset):
            def __len__(self):
                return 4
            def __getitem__(self, at):
                return torch.tensor([0.0]).log() if at == 9 else torch.tensor([float(at)])
        if __name__ == "__main__":
            w = torch.ones(1, requires_grad=True)
            for x in torch.utils.data.DataLoader(Data(), 2, num_workers=1):
                (w * x).sum().backward()
            print(w.grad.item())
        """,
    "compiled": """
        import torch
        def loss(x):
            return x.sqrt().sum()
        torch.compile(loss, backend="aot_eager")(torch.zeros(2, requires_grad=True)).backward()
        """,
    "prints_json": BAD + "print('{}')",
    "stops": BAD + "print('not reached')",
    "catches": "try:\n" + textwrap.indent(BAD, "    ") + "finally:\n    print('cleaned up')",
    "ends_at_once": BAD + "import os, sys\nsys.stdout.flush()\nos._exit(5)",
}
CALLS = {
    "good": ["good.py"],
    "bad": ["bad.py"],
    "arguments": ["arguments.py", "--json", "-m", "a b"],
    "exit_0": ["exit_0.py"],
    "exit_3": ["exit_3.py"],
    "exit_3_bad": ["exit_3_bad.py"],
    "exit_text": ["exit_text.py"],
    "exit_none": ["exit_none.py"],
    "raises": ["raises.py"],
    "interrupted": ["interrupted.py"],
    "main": ["main.py"],
    "elsewhere": ["inner/uses_helpers.py"],
    "module": ["-m", "package.train", "--epochs", "3"],
    "a package": ["-m", "package"],
    "pickles": ["pickles.py"],
    "processes": ["processes.py"],
    "loader": ["loader.py"],
    "compiled": ["compiled.py"],
    "json": ["--json", "prints_json.py"],
    "stop": ["--stop", "stops.py"],
    "stop, cleaned up": ["--stop", "catches.py"],
    "ends at once": ["ends_at_once.py"],
    "not there": ["nothing.py"],
    "no module": ["-m", "package.nothing"],
    "no script": [],
}

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
    for name, source in SCRIPTS.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(source))
    (folder / "inner").mkdir()
    (folder / "uses_helpers.py").rename(folder / "inner" / "uses_helpers.py")
    (folder / "inner" / "helpers.py").write_text("WHOSE = 'mine'\ndef loss(x):\n    return x.sqrt().sum()\n")
    (folder / "package").mkdir()
    (folder / "package" / "__init__.py").write_text("")
    (folder / "package" / "__main__.py").write_text("print('the package', __package__)\n")
    (folder / "package" / "train.py").write_text("import sys\nprint(sys.argv[1:], __name__, __package__)\n" + BAD)
    (folder / "calls.json").write_text(json.dumps(CALLS))
    environment = {**os.environ, "PYTHONPATH": HOME, "OMP_NUM_THREADS": "1"}
    alone = [sys.executable, "-m", "zero_or_nan.explain", *CALLS["bad"]]
    by_itself = subprocess.run(alone, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    subprocess.run([sys.executable, "-c", FORKS], cwd=folder, env=environment, check=True, timeout=300)
    told = json.loads((folder / "told.json").read_text())
    return {name: Ran(*told[name]) for name in CALLS} | {
        "by itself": Ran(by_itself.returncode, by_itself.stdout, by_itself.stderr)
    }


def test_as_the_shell_runs_it(ran):
    assert ran["by itself"] == ran["bad"]


@pytest.mark.parametrize(
    ("name", "status"),
    {
        "good": 0, "bad": 1, "arguments": 0, "exit_0": 1, "exit_3": 3, "exit_3_bad": 3, "exit_text": 1, "exit_none": 0,
        "raises": 1, "main": 0, "elsewhere": 1, "module": 1, "a package": 0, "pickles": 0,
        "processes": 1, "loader": 0, "compiled": 1, "json": 1, "stop": 1, "stop, cleaned up": 1, "ends at once": 5,
        "not there": 2, "no module": 1, "no script": 2,
    }.items(),
)  # fmt: skip
def test_exit_status(ran, name, status):
    assert ran[name].returncode == status, ran[name].stdout + ran[name].stderr


@pytest.mark.parametrize(
    ("name", "text"),
    {
        "good": "done\n",
        "bad": "done\n",
        "arguments": "['--json', '-m', 'a b'] True __main__\n",
        "main": "main __main__ main.py\n",
        "elsewhere": "mine\n",
        "module": "['--epochs', '3'] __main__ package\n",
        "a package": "the package package\n",
        "pickles": "Mine\n",
        "processes": "[0.5, 0.25]\n",
        "loader": "6.0\n",
        "stop, cleaned up": "cleaned up\n",
    }.items(),
)
def test_the_script_prints_what_it_prints(ran, name, text):
    assert ran[name].stdout.startswith(text), ran[name].stdout + ran[name].stderr


@pytest.mark.parametrize("name", ["bad", "exit_0", "exit_3_bad", "raises", "interrupted", "module", "stop"])
def test_the_report(ran, name):
    assert "contaminated: exp(100) > 3.4e38" in ran[name].stdout


@pytest.mark.parametrize("name", ["elsewhere", "processes", "compiled"])
def test_the_report_names_the_line(ran, name):
    assert "undefined" in ran[name].stdout and "sqrt().sum()" in ran[name].stdout


@pytest.mark.parametrize("name", ["good", "arguments", "main", "a package", "loader", "pickles", "exit_none"])
def test_all_is_well(ran, name):
    assert "nothing that is not finite" in ran[name].stdout and not ran[name].stderr


def test_json(ran):
    told = json.loads(ran["json"].stdout.removeprefix("{}\n"))
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
