"""What every job is: `fedlit` in a process that does not outlive the one that started it.

python -m fedlit.experiments.child PARENT fit --config …
"""

import ctypes
import os
import signal
import sys

from fedlit.cli import main

PR_SET_PDEATHSIG = 1


def end_with(parent: int) -> None:
    """Ask for SIGTERM when the parent dies, by kill -9 too: the run then ends with its round and can be resumed.

    Only Linux has this. Elsewhere a run whose parent was killed goes on to its end.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it died before we asked
        sys.exit(130)


if __name__ == "__main__":
    end_with(int(sys.argv[1]))
    main(sys.argv[2:])
