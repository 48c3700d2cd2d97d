"""The start of every kernel of a build: one thread, the chosen device, no repeated warnings, no settings of the user.

IPython runs the files in the `startup` folder of its home whenever a kernel starts. It does so for `make book` and for
a plain `jupyter-book build .`, with a warm server and without. Importing the helpers changes no settings.
"""

from __future__ import annotations

import inspect
import os

from ..project import Project, write


def quiet() -> None:
    """Ignore three warnings, and no others: one about the `torch.masked` prototype, and two of anomaly mode.

    PyTorch repeats the first at every construction; the book says it once, in prose. The warnings of anomaly mode say
    that it is on, and print the stack of the forward call. In a cell, that stack is thirty frames of the kernel. All
    other warnings are shown as category and text. Python's usual form begins with a path of the machine and the
    kernel's process number. A reader can't use them, and they differ in every build.
    """
    import warnings

    prototype = "The PyTorch API of MaskedTensors is in prototype stage"
    for message in (prototype, "Anomaly Detection has been enabled", "Error detected in "):
        warnings.filterwarnings("ignore", message=message, category=UserWarning)
    warnings.formatwarning = lambda message, category, *_, **__: f"{category.__name__}: {message}\n"


def place() -> None:
    """Create tensors on the device that `ZERO_OR_NAN_DEVICE` names. Without this variable, PyTorch's default stays."""
    import os

    device = os.environ.get("ZERO_OR_NAN_DEVICE")
    if device:
        import torch

        torch.set_default_device(device)


STARTUP = f"{inspect.getsource(quiet)}\n\n{inspect.getsource(place)}\n\nquiet()\nplace()\ndel quiet, place\n"
"""The code that a kernel runs before its chapter. It leaves no name behind."""


def begin(project: Project) -> None:
    """Give the start-up code and one thread to every kernel that this process starts, however the kernel is started."""
    home = project.build / "ipython"
    write(home / "profile_default" / "startup" / "quiet.py", STARTUP)
    os.environ["IPYTHONDIR"] = str(home)
    # Several kernels share the processors, so more threads in each kernel would only wait for each other.
    os.environ["OMP_NUM_THREADS"] = "1"
