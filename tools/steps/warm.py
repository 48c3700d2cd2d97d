"""Kernels that start fast: one process imports PyTorch and matplotlib once, and every kernel is a fork of it.

These imports take seconds, and Jupyter's own launcher repeats them for every chapter. Python's fork server runs them
only once. A fork shares the imported modules and nothing else, so chapters are as separate as in kernels of their own.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from contextlib import suppress
from importlib.metadata import EntryPoint
from multiprocessing import forkserver, resource_tracker
from multiprocessing.process import BaseProcess
from typing import Any, ClassVar, cast

from jupyter_client.connect import KernelConnectionInfo
from jupyter_client.provisioning.factory import KernelProvisionerFactory
from jupyter_client.provisioning.local_provisioner import LocalProvisioner

_NAME = "warm-provisioner"
_CHOICE = KernelProvisionerFactory.default_provisioner_name_env
# torch.func, torch.optim and torch.masked import torch._dynamo, or most of it, at first use.
_SLOW = ("matplotlib.backends.backend_svg", "matplotlib.figure", "torch._dynamo", "torch.masked")
"""Slow imports that most chapters share."""


class Warmth:
    """A block in which every kernel that this process starts is a fork of one warm server. At its end, all kernels end.

    On systems other than Linux, a fork of a process that has imported PyTorch is not reliable. There, kernels start as
    usual.

    Args:
        several: whether more than one kernel will import PyTorch. A single kernel imports what it needs by itself.
    """

    def __init__(self, several: bool) -> None:
        self._modules = [f"{__package__}.kernel", *(_SLOW if several else [])]

    def __enter__(self) -> Warmth:
        _ForkedKernel.welcome = True
        if sys.platform == "linux":
            os.environ[_CHOICE] = _NAME
            KernelProvisionerFactory.provisioners[_NAME] = EntryPoint(
                _NAME, f"{__name__}:WarmProvisioner", KernelProvisionerFactory.GROUP_NAME
            )
            KernelProvisionerFactory.clear_instance()
            _server().set_forkserver_preload(self._modules)
            resource_tracker.ensure_running()  # here, because it would unblock Ctrl-C inside the block below
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                # The server does these imports while the build prepares its work. Until the server can end quietly,
                # Ctrl-C waits.
                forkserver.ensure_running()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return self

    def __exit__(self, *_: object) -> None:
        # Warm kernels stay chosen: a thread may be about to start a kernel, and a warm one is refused.
        _ForkedKernel.end_all()


class WarmProvisioner(LocalProvisioner):
    """Starts a kernel by forking the warm server instead of launching a new Python."""

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> KernelConnectionInfo:
        connection_file = cmd[cmd.index("-f") + 1]
        kernel = _ForkedKernel(connection_file, kwargs.get("cwd") or os.getcwd(), dict(kwargs["env"]))
        self.process = cast(Any, kernel)
        self.pid = self.pgid = kernel.pid
        return self.connection_info


class _ForkedKernel:
    """The part of the interface of `subprocess.Popen` that jupyter_client uses, for a fork."""

    alive: ClassVar[set[_ForkedKernel]] = set()
    welcome: ClassVar[bool] = False
    door: ClassVar[threading.Lock] = threading.Lock()
    stdin = stdout = stderr = None

    def __init__(self, connection_file: str, cwd: str, env: dict[str, str]) -> None:
        with self.door:
            if not self.welcome:
                raise RuntimeError("the build is ending, so no new kernel is started")
            # Not a daemon, because a daemon may not have children, and a chapter may start processes, such as a
            # DataLoader's.
            self._process: BaseProcess = _server().Process(target=_run_kernel, args=(connection_file, cwd, env))
            self._process.start()
            assert self._process.pid is not None
            self.pid: int = self._process.pid
            self.alive.add(self)

    @classmethod
    def end_all(cls) -> None:
        """Kill every kernel, and refuse to start another, even if a thread is about to."""
        cls.welcome = False
        # A thread may be at the door. If the server does not answer it soon, its kernel ends with the build.
        if cls.door.acquire(timeout=1):
            cls.door.release()
        for kernel in list(cls.alive):
            kernel.kill()

    def poll(self) -> int | None:
        code = self._process.exitcode
        if code is not None:
            self.alive.discard(self)
        return code

    def wait(self) -> int | None:
        self._process.join()
        return self.poll()

    def send_signal(self, signum: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, signum)

    def kill(self) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # the kernel is so young that it does not lead its group yet
                os.killpg(self.pid, signal.SIGKILL)  # also what a chapter has started and not ended
            self.send_signal(signal.SIGKILL)
        self.wait()

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


def _server() -> Any:
    return multiprocessing.get_context("forkserver")


def _run_kernel(connection_file: str, cwd: str, env: dict[str, str]) -> None:
    from .kernel import run  # imported here, because at the top it would import PyTorch into the build itself

    run(connection_file, cwd, env)
