"""What all kernels share: imported once, by the server that every kernel is a fork of."""

import gc
import os

# Several kernels share the processors: threads of their own would only wait for each other.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["PYDEVD_DISABLE_FILE_VALIDATION"] = "1"  # the kernel's debugger warns of a setting that forks can't have

import ipykernel.debugger  # noqa: F401
import matplotlib.backends.backend_svg
import matplotlib.figure  # noqa: F401
import psutil  # noqa: F401
import torch._dynamo  # noqa: F401  # torch.func, torch.optim and torch.masked import it, or most of it, at first use
import torch.masked  # noqa: F401
from ipykernel.kernelapp import launch_new_instance

# A collection in a fork would touch, and so copy, the memory that it shares with its siblings.
gc.freeze()


def run(connection_file: str, cwd: str, env: dict[str, str]) -> None:
    """Be a kernel, in this process, until told to stop."""
    os.setsid()  # Ctrl-C in the terminal reaches the build, which then ends its kernels; not a cell halfway
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    parent = f"--IPKernelApp.parent_handle={os.getppid()}"  # the kernel ends when the warm server does
    launch_new_instance(argv=["-f", connection_file, parent, "--log-level=ERROR"])
