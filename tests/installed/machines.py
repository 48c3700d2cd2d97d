"""Fresh machines: Python, torch with what it needs, and an empty folder to work in.

Every machine is an empty environment. It finds torch and what torch needs, and nothing else of the environment in which
the tests run. Links lead there, so nothing is installed twice. With TORCH="torch==2.6.*", pip installs that PyTorch
once, and every machine finds it there.

A clone of this working tree stands for the published repository, so that what is tested is what is about to be
committed: only git is told so, through its environment.

Needs git, and the package index if TORCH is set. If one of them is missing, these tests fail.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.project import Project

PROJECT = Project(Path(__file__).parents[2])
TORCH = os.environ.get("TORCH")
PINS = () if TORCH else ("--constraint", PROJECT.root / "requirements.txt")


class Machine:
    """One Python environment without pip, and one empty folder to work in.

    Args:
        home: where both lie.
        variables: the environment variables of whatever runs on it.
        below: the machines whose packages it finds too.
    """

    def __init__(self, home, variables, *below):
        self.prefix = home / "environment"
        self.folder = home / "content"
        self.folder.mkdir(parents=True)
        self.python = self.prefix / "bin" / "python"
        self.variables = variables | {"PATH": f"{self.python.parent}{os.pathsep}{os.environ['PATH']}"}
        run(sys.executable, "-m", "venv", "--without-pip", self.prefix)
        self.find(*(path for machine in below for path in machine.paths))

    @property
    def packages(self):
        """Its site-packages."""
        scheme = {"base": str(self.prefix), "platbase": str(self.prefix)}
        return Path(sysconfig.get_path("purelib", "venv", scheme))

    @property
    def paths(self):
        """Every folder in which an import finds something that was installed."""
        return [self.packages, *map(Path, (self.packages / "others.pth").read_text().splitlines())]

    def find(self, *paths):
        """Look for packages in other folders too."""
        with (self.packages / "others.pth").open("a") as others:
            others.writelines(f"{path}\n" for path in paths)

    def installed(self):
        """What is installed, by name and version, and every name in its own site-packages."""
        found = metadata.distributions(path=[str(path) for path in self.paths])
        return {each.name: each.version for each in found}, sorted(path.name for path in self.packages.iterdir())

    def install(self, *wanted):
        """What pip installs there with all that it needs. It runs from here, and leaves no pip there."""
        pip = (sys.executable, "-m", "pip", "--python", self.python, "install", "--quiet", "--no-compile")
        run(*pip, *PINS, *wanted, env=self.variables, hint="Is the package index within reach?")

    def link(self, *wanted):
        """Find these packages, and all that they need, where the tests find them."""
        for name in needed(*wanted):
            package = metadata.distribution(name)
            for entry in {file.parts[0] for file in package.files or ()} - {"..", "__pycache__"}:
                link, target = self.packages / entry, Path(package.locate_file(entry))
                if not link.exists() and target.exists():
                    link.symlink_to(target)

    def run(self, code):
        """What a program prints, in the working folder."""
        return run(self.python, "-c", code, cwd=self.folder, env=self.variables)


class Machines:
    """Fresh machines, as many as are needed, and the repository that git finds on them.

    Args:
        home: an empty folder for all of them.
    """

    def __init__(self, home):
        self.home = home
        self.clone = home / "clone"
        if not shutil.which("git"):
            pytest.fail("git is missing: the notebooks' set-up cell clones the repository with it", pytrace=False)
        clone_working_tree(self.clone)
        ours = ("PYTHON", "PIP_TARGET", "PIP_PREFIX", "VIRTUAL_ENV", "GIT_", "JUPYTER", "JPY_", "IPYTHON", "MPL")
        self.variables = {name: value for name, value in os.environ.items() if not name.startswith(ours)} | {
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": f"url.{self.clone.as_uri()}.insteadOf",
            "GIT_CONFIG_VALUE_0": PROJECT.repository,
            "GIT_ALLOW_PROTOCOL": "file",  # should the rule above not match: an error, not the published repository
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
            "IPYTHONDIR": str(home / "ipython"),
            "JUPYTER_CONFIG_DIR": str(home / "jupyter"),
            "MPLCONFIGDIR": str(home / "matplotlib"),
        }
        self.torch = Machine(home / "torch", self.variables)
        self.provide(self.torch, TORCH or "torch")

    def provide(self, machine, *wanted):
        """Packages of others that a machine has from the start."""
        if TORCH:
            machine.install(*wanted)
        else:
            machine.link(*wanted)

    def machine(self, name, below=None):
        """A machine with torch alone, or with all that another has. What changes on it, no other machine sees."""
        return Machine(self.home / name, self.variables, below or self.torch)


def needed(*wanted):
    """The names of packages and of all that they need here, each once."""
    found, rest = {}, list(wanted)
    while rest:
        name = canonicalize_name(rest.pop())
        if name not in found:
            found[name] = None
            requirements = map(Requirement, metadata.requires(name) or ())
            rest += [each.name for each in requirements if not each.marker or each.marker.evaluate({"extra": ""})]
    return list(found)


def working_tree():
    """Every file that is committed or could be, by its path in the repository."""
    listed = run("git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", cwd=PROJECT.root)
    return [name for name in listed.split("\0") if (PROJECT.root / name).is_file()]


def clone_working_tree(to):
    """A repository with one commit: the working tree as it is."""
    for name in working_tree():
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(PROJECT.root / name, to / name)
    commit(to)


def commit(to):
    """Make a folder a repository with one commit, on the branch that readers get."""
    git = ("git", "-C", to, "-c", "user.name=test", "-c", "user.email=test@localhost", "-c", "commit.gpgSign=false")
    run("git", "init", "--quiet", "--template=", f"--initial-branch={PROJECT.branch}", to)
    run(*git, "add", "--all", "--force")
    run(*git, "commit", "--quiet", "--no-verify", "--message", "the working tree")


def run(*command, cwd=None, env=None, hint=""):
    """What a command prints; the test fails, with the command's own words, when it fails."""
    done = subprocess.run([str(part) for part in command], cwd=cwd, env=env, capture_output=True, text=True)
    if done.returncode:
        said = (done.stdout + done.stderr)[-4000:]
        pytest.fail(f"{' '.join(map(str, command))}\nexits {done.returncode}:\n{said}{hint}", pytrace=False)
    return done.stdout
