"""Work in a process of its own comes to an end, whatever it does, and takes what it started with it."""

import os
import signal
import subprocess
import sys
import time

import psutil
from scratch import wait_for

from tools.measure.apart import apart


def test_why_it_came_to_no_end_is_told():
    assert apart(lambda: time.sleep(60), 0.2) == "no end in 0.2 s"
    assert apart(lambda: os.kill(os.getpid(), signal.SIGKILL), 30) == "the process died: SIGKILL"
    assert apart(lambda: os._exit(3), 30) == "the process died: exit 3"
    assert apart(lambda: 1 / 0, 30) == "ZeroDivisionError: division by zero"


def test_what_it_started_ends_with_it(tmp_path):
    def work(seconds):
        started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        (tmp_path / "pid").write_text(str(started.pid))
        time.sleep(seconds)

    for seconds in (0, 60):
        apart(lambda seconds=seconds: work(seconds), 2)
        process = int((tmp_path / "pid").read_text())
        (tmp_path / "pid").unlink()
        assert wait_for(lambda process=process: gone(process), 10)


def gone(process):
    return not psutil.pid_exists(process) or psutil.Process(process).status() == psutil.STATUS_ZOMBIE
