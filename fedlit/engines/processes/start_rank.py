"""Becomes a further rank, which ends if its parent does, even by kill -9: `start_rank.py PARENT COMMAND`.

It must run at once, and so imports nothing of fedlit, which takes seconds.
"""

import ctypes
import os
import signal
import sys


def set_death_signal(signum: int) -> int:
    """Set the signal that the system sends this process when its parent dies (0: none); returns the old one. Linux."""
    if sys.platform != "linux":
        return 0
    libc, before = ctypes.CDLL(None), ctypes.c_int()
    libc.prctl(2, ctypes.byref(before))  # PR_GET_PDEATHSIG
    libc.prctl(1, signum)  # PR_SET_PDEATHSIG
    return before.value


if __name__ == "__main__":
    parent, *command = sys.argv[1:]
    set_death_signal(signal.SIGKILL)  # stays set after exec
    if os.getppid() != int(parent):  # the parent has died already
        sys.exit(1)
    os.execv(command[0], command)
