"""How a kernel starts, and what becomes of its outputs."""

from tempfile import TemporaryDirectory

import pytest
from nbformat.v4 import new_code_cell, new_notebook

from tools.steps import warm
from tools.steps.run import run_one


def notebook(*cells):
    kernel = {"name": "python3", "display_name": "Python 3"}
    return new_notebook(cells=[new_code_cell(cell) for cell in cells], metadata={"kernelspec": kernel})


def dies(connection_file, cwd, env):
    """What stands in for a kernel that dies at its start."""
    raise SystemExit(3)


@pytest.fixture
def deaths(monkeypatch):
    """Have the first kernels die before they run a cell: as many as the number that is set."""
    lives, left = warm._run_kernel, [0]

    def start(self, connection_file, cwd, env):
        monkeypatch.setattr(warm, "_run_kernel", dies if left[0] else lives)
        left[0] -= bool(left[0])
        usual(self, connection_file, cwd, env)

    usual = warm._ForkedKernel.__init__
    monkeypatch.setattr(warm._ForkedKernel, "__init__", start)
    return left


def run(tmp_path, *cells):
    with TemporaryDirectory() as folder, warm.Warmth(several=True):
        return run_one(tmp_path / "chapter.md", notebook(*cells), timeout=20, folder=folder)


def test_a_kernel_is_not_reached_through_ports(tmp_path):
    asked = "from ipykernel.connect import get_connection_info\nprint(get_connection_info(unpack=True)['transport'])"
    (cell,) = run(tmp_path, asked).notebook.cells
    assert cell.outputs[0].text == "ipc\n"


def test_a_kernel_that_dies_at_its_start_starts_once_more(tmp_path, deaths):
    deaths[0] = 1
    done = run(tmp_path, "print(1)")
    assert (deaths[0], done.troubles, done.notebook.cells[0].outputs[0].text) == (0, (), "1\n")


def test_a_kernel_that_dies_at_every_start_is_a_trouble_with_a_name(tmp_path, deaths):
    deaths[0] = 2
    (trouble,) = run(tmp_path, "print(1)").troubles
    assert (deaths[0], trouble.cell, trouble.line) == (0, 1, "print(1)")
    assert trouble.what == "has no kernel: Kernel died before replying to kernel_info"


def test_a_cell_that_ends_its_kernel_is_not_run_again(tmp_path):
    counts = tmp_path / "runs"
    (trouble,) = run(tmp_path, f"open({str(counts)!r}, 'a').write('x')", "import os\nos._exit(3)").troubles
    assert (trouble.cell, trouble.what) == (2, "ends its kernel: the Python process died")
    assert counts.read_text() == "x"
