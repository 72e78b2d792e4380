"""Ctrl-C: the first ends the run at the round's end, a second at once, but never while a round is being committed."""

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

log = logging.getLogger("fedlit")


class StopRequest:
    """Whether a run was asked to stop, and when it may."""

    def __init__(self) -> None:
        self.asked = False
        """Whether the run ends after this round; it can be resumed."""
        self._at_once = False
        self._held = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Handle Ctrl-C inside the block; only the main thread gets signals."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGINT, self._interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def take_sigterm(self) -> None:
        """Let SIGTERM ask the run to stop, as Ctrl-C does. Lightning's own handler, which it restores at the end, would
        broadcast inside the signal handler and wait for ranks that got no signal.
        """
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._terminate)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Inside the block, a second Ctrl-C waits until the block ends."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
        if self._at_once:
            raise KeyboardInterrupt

    def _terminate(self, signum: int, frame: FrameType | None) -> None:
        self.asked = True

    def _interrupt(self, signum: int, frame: FrameType | None) -> None:
        if not self.asked:
            self.asked = True
            log.info("Stopping after this round; press Ctrl-C again to stop at once.")
            return
        self._at_once = True
        if not self._held:
            raise KeyboardInterrupt


@contextmanager
def interrupts_go_through() -> Iterator[None]:
    """Raise KeyboardInterrupt again where Lightning made exit code 1 of it."""
    try:
        yield
    except SystemExit as ended:
        if isinstance(ended.__context__, KeyboardInterrupt):
            raise ended.__context__ from None
        raise
