"""How every kernel of a build begins: without its builder's settings, quiet where pages would repeat, on its device.

IPython runs the files in the `startup` folder of its home, whoever starts the kernel: `make book`, a plain
`jupyter-book build .`, with a warm server or without. The helpers themselves change nothing when they are imported.
"""

from __future__ import annotations

import inspect
import os

from ..project import Project, write


def quiet() -> None:
    """Ignore three warnings, and no other: the prototype's of `torch.masked`, and both of anomaly mode.

    The first comes at every construction; the book says so once, in prose. Those of anomaly mode say that it is on, and
    where the forward call stood: of a cell, that is thirty frames of the kernel. All other warnings are shown as their
    category and text: the usual form begins with a path on the machine that ran the cell, and with the kernel's process
    number, of no use to a reader, and different in every build.
    """
    import warnings

    prototype = "The PyTorch API of MaskedTensors is in prototype stage"
    for message in (prototype, "Anomaly Detection has been enabled", "Error detected in "):
        warnings.filterwarnings("ignore", message=message, category=UserWarning)
    warnings.formatwarning = lambda message, category, *_, **__: f"{category.__name__}: {message}\n"


def place() -> None:
    """Make tensors on the device that `ZERO_OR_NAN_DEVICE` names; without it, where PyTorch makes them by itself."""
    import os

    device = os.environ.get("ZERO_OR_NAN_DEVICE")
    if device:
        import torch

        torch.set_default_device(device)


STARTUP = f"{inspect.getsource(quiet)}\n\n{inspect.getsource(place)}\n\nquiet()\nplace()\ndel quiet, place\n"
"""What a kernel runs before its chapter; it leaves no name behind."""


def begin(project: Project) -> None:
    """Have the kernels that this process starts, by whatever way, begin like this."""
    home = project.build / "ipython"
    write(home / "profile_default" / "startup" / "quiet.py", STARTUP)
    os.environ["IPYTHONDIR"] = str(home)
