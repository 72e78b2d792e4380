"""The command `fedlit`, outside of the package: importing that takes seconds, in which Ctrl-C must be one line too."""

import os
import signal
from types import FrameType


def main() -> None:
    """Import fedlit and run the command, which takes Ctrl-C over when what it needs is imported."""
    before = signal.signal(signal.SIGINT, stop_at_once)
    from fedlit.cli.main import main as run

    run(ready=lambda: signal.signal(signal.SIGINT, before))


def stop_at_once(signum: int, frame: FrameType | None) -> None:
    """Nothing has begun. An exception would run into the imports, and some of them catch it."""
    if os.environ.get("LOCAL_RANK", "0") == "0":  # one process of several says it
        os.write(2, b"fedlit: stopped before anything was begun.\n")
    os._exit(130)


if __name__ == "__main__":
    main()
