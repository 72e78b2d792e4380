"""Children: processes that end with the one that started them, how they are ended, and what is said of their end.

As a program, `children.py PARENT COMMAND`, it becomes such a child, a further rank. That comes before anything that
takes seconds, and so this file imports nothing of fedlit.
"""

import ctypes
import os
import signal
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Sequence


def set_death_signal(signum: int) -> int:
    """Which signal the system sends this process when its parent dies (0: none); returns the one so far. Linux only."""
    if sys.platform != "linux":
        return 0
    libc, before = ctypes.CDLL(None), ctypes.c_int()
    libc.prctl(2, ctypes.byref(before))  # PR_GET_PDEATHSIG
    libc.prctl(1, signum)  # PR_SET_PDEATHSIG
    return before.value


def end_with(parent: int, signum: int, exit_code: int) -> None:
    """Ask for a signal when the parent dies, by kill -9 too. It outlives exec, and a child of this process has none."""
    set_death_signal(signum)
    if os.getppid() != parent:  # it died before we asked
        sys.exit(exit_code)


def end_children(children: "Sequence[subprocess.Popen[bytes]]", patience: float) -> None:
    """Give them so many seconds to end by themselves, all together, and then SIGKILL."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline and any(child.poll() is None for child in children):
        time.sleep(0.01)
    for child in children:
        if child.poll() is None:
            child.kill()
            child.wait()


def signal_of(exit_code: int) -> str | None:
    """The name of the signal that ended a process, or None."""
    if exit_code >= 0:
        return None
    known = {int(one): one.name for one in signal.Signals}
    return known.get(-exit_code, f"signal {-exit_code}")  # real-time signals have no names


def ending_of(exit_code: int) -> str:
    """How a process ended, to stand after its name."""
    name = signal_of(exit_code)
    return f"ended with exit code {exit_code}" if name is None else f"was ended by {name}"


if __name__ == "__main__":
    parent, *command = sys.argv[1:]
    end_with(int(parent), signal.SIGKILL, 1)
    os.execv(command[0], command)
