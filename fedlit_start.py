"""The command `fedlit`. It is not part of the package, whose import takes seconds: until then it handles Ctrl-C."""

import os
import signal
from types import FrameType


def main() -> None:
    """Import fedlit and run the command; once all is imported, the command handles Ctrl-C itself."""
    before = signal.signal(signal.SIGINT, stop_at_once)
    from fedlit.cli.main import main as run

    run(ready=lambda: signal.signal(signal.SIGINT, before))


def stop_at_once(signum: int, frame: FrameType | None) -> None:
    """End the process with one line. An exception would arise inside an import, and some imports catch it."""
    if os.environ.get("LOCAL_RANK", "0") == "0":  # only the first process prints it
        os.write(2, b"fedlit: stopped before anything was begun.\n")
    os._exit(130)


if __name__ == "__main__":
    main()
