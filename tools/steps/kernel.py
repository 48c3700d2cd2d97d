"""What all kernels are forks of: a process that has imported the kernel itself."""

import gc
import multiprocessing
import os
import signal
import threading

# Several kernels share the processors: threads of their own would only wait for each other.
_THREADS = {"OMP_NUM_THREADS": "1"}
os.environ.update(_THREADS)
# Ctrl-C while all this is imported ends the server without a traceback.
signal.signal(signal.SIGINT, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
os.environ["PYDEVD_DISABLE_FILE_VALIDATION"] = "1"  # the kernel's debugger warns of a setting that forks can't have

import ipykernel.debugger  # noqa: F401
import psutil  # noqa: F401
from ipykernel.kernelapp import launch_new_instance

# A collection in a fork would touch, and so copy, the memory that it shares with its siblings.
gc.freeze()


def run(connection_file: str, cwd: str, env: dict[str, str]) -> None:
    """Be a kernel, in this process, until told to stop."""
    os.setsid()  # Ctrl-C in the terminal reaches the build, which then ends its kernels; not a cell halfway
    os.environ.clear()
    os.environ.update(env | _THREADS)
    os.chdir(cwd)
    threading.Thread(target=_end_with_the_build, daemon=True).start()
    parent = f"--IPKernelApp.parent_handle={os.getppid()}"  # the kernel ends when the warm server does
    launch_new_instance(argv=["-f", connection_file, parent, "--log-level=ERROR"])


def _end_with_the_build() -> None:
    # The server alone would not do: it outlives a killed build for as long as any of its forks is alive.
    build = multiprocessing.parent_process()
    assert build is not None
    build.join()
    os._exit(1)
