"""A script on two processes, for the tests of what PyTorch spreads over several."""

import json
import subprocess
import sys
from pathlib import Path

import zero_or_nan

HOME = str(Path(zero_or_nan.__file__).parents[1])


def results_of_two(script, store, names, *arguments, timeout=90):
    """Run a script twice, which prints `result [name, found]`; what each of the two processes found, by name.

    The script gets its rank, a file to meet at and the arguments. A process that does not end in time is killed, and
    what it has printed by then shows where it was.
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
    outputs = [file.read_text() for file in files]
    found = [
        dict(json.loads(line[7:]) for line in output.splitlines() if line.startswith("result ")) for output in outputs
    ]
    assert [sorted(rank) for rank in found] == [sorted(names)] * 2, "\n".join(outputs)
    return found
