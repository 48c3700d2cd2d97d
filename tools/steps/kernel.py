"""The process that all kernels are forks of. It has imported the kernel's own modules."""

import gc
import multiprocessing
import os
import signal
import threading

# Without this, Ctrl-C during the imports would end the server with a traceback.
signal.signal(signal.SIGINT, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
os.environ["PYDEVD_DISABLE_FILE_VALIDATION"] = "1"  # the kernel's debugger warns about a setting that forks lack

import ipykernel.debugger  # noqa: F401
import psutil  # noqa: F401
from ipykernel.kernelapp import launch_new_instance


def run(connection_file: str, cwd: str, env: dict[str, str]) -> None:
    """Run as a kernel in this process, until the build ends the kernel."""
    # A garbage collection would write to memory that the forks share, and the system would then copy it.
    gc.freeze()
    os.setsid()  # so that Ctrl-C in the terminal reaches only the build, which then ends its kernels
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    threading.Thread(target=_end_with_the_build, daemon=True).start()
    parent = f"--IPKernelApp.parent_handle={os.getppid()}"  # the kernel ends when the warm server ends
    launch_new_instance(argv=["-f", connection_file, parent, "--log-level=ERROR", "--HistoryManager.enabled=False"])


def _end_with_the_build() -> None:
    # The check of the server is not enough: the server outlives a killed build as long as any of its forks is alive.
    build = multiprocessing.parent_process()
    assert build is not None
    build.join()
    os.killpg(0, signal.SIGKILL)  # this kernel, and the processes that its chapter has started
