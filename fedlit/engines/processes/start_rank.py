"""Becomes a further rank that ends with the process that started it, kill -9 included: `start_rank.py PARENT COMMAND`.

It runs before anything that takes seconds, and so imports nothing of fedlit.
"""

import ctypes
import os
import signal
import sys


def set_death_signal(signum: int) -> int:
    """Which signal the system sends this process when its parent dies (0: none); returns the one so far. Linux only."""
    if sys.platform != "linux":
        return 0
    libc, before = ctypes.CDLL(None), ctypes.c_int()
    libc.prctl(2, ctypes.byref(before))  # PR_GET_PDEATHSIG
    libc.prctl(1, signum)  # PR_SET_PDEATHSIG
    return before.value


if __name__ == "__main__":
    parent, *command = sys.argv[1:]
    set_death_signal(signal.SIGKILL)  # it outlives exec
    if os.getppid() != int(parent):  # it died before we asked
        sys.exit(1)
    os.execv(command[0], command)
