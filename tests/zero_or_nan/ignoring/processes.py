"""A script on two processes, for the tests of what PyTorch spreads over several."""

import json
import subprocess
import sys
from pathlib import Path

import zero_or_nan

HOME = str(Path(zero_or_nan.__file__).parents[1])


def outputs_of_two(script, store, *arguments, timeout=90):
    """Run a script twice, with its rank, a file to meet at and the arguments; what each of them printed.

    A process that is not through in time is ended: what it had told by then tells where it was.
    """
    script = f"import sys; sys.path.insert(0, {HOME!r})\n" + script
    files = [Path(f"{store}.{rank}") for rank in range(2)]
    ranks = []
    for rank, file in enumerate(files):
        with file.open("w") as told:  # a pipe would be full before the other process is read
            command = [sys.executable, "-c", script, str(rank), str(store), *arguments]
            ranks.append(subprocess.Popen(command, stdout=told, stderr=subprocess.STDOUT))
    try:
        for process in ranks:
            process.wait(timeout=timeout)
    except subprocess.TimeoutExpired:
        pass
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    return [file.read_text() for file in files]


def results_of_two(script, store, names, *arguments, timeout=90):
    """What a script that prints `result [name, found]` found by each name, on each of its two processes."""
    outputs = outputs_of_two(script, store, *arguments, timeout=timeout)
    told = [[line.removeprefix("result ") for line in output.splitlines() if line.startswith("result ")]
            for output in outputs]  # fmt: skip
    found = [dict(map(json.loads, lines)) for lines in told]
    assert [sorted(rank) for rank in found] == [sorted(names)] * 2, "\n".join(outputs)
    return found
