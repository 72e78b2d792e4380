"""Children: they are ended in time, they do not outlive their parent, and their end is told in words."""

import signal
import subprocess
import sys
import time

import pytest

from fedlit.engines.processes import children
from fedlit.engines.processes.children import end_children, ending_of, signal_of

DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"


def started(program: str) -> "subprocess.Popen[bytes]":
    """A child that has come to its first line of output."""
    child = subprocess.Popen([sys.executable, "-I", "-S", "-c", program], stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"\n"
    return child


def test_a_child_that_does_not_end_in_time_is_killed_and_others_end_by_themselves() -> None:
    deaf, quick = started(DEAF), started("print(flush=True)")
    deaf.terminate()
    end_children([deaf, quick], patience=0.5)
    assert (deaf.returncode, quick.returncode) == (-signal.SIGKILL, 0)


def test_nobody_waits_for_children_that_have_ended() -> None:
    quick = started("print(flush=True)")
    began = time.monotonic()
    end_children([quick], patience=300)
    assert time.monotonic() - began < 60


@pytest.mark.skipif(sys.platform != "linux", reason="no other system tells a child of its parent's death")
def test_a_child_ends_with_a_parent_that_is_killed() -> None:
    own = "print(flush=True); import time; time.sleep(600)"
    program = (
        f"import os, subprocess, sys\ncommand = [{sys.executable!r}, {children.__file__!r}, str(os.getpid())]\n"
        f"subprocess.run([*command, {sys.executable!r}, '-c', {own!r}])"
    )
    parent = started(program)
    parent.kill()
    assert parent.stdout is not None
    assert parent.stdout.read() == b""  # at its end nobody holds the other end of the pipe
    parent.wait()


@pytest.mark.parametrize(
    ("code", "name", "words"),
    [
        (0, None, "ended with exit code 0"),
        (3, None, "ended with exit code 3"),
        (-9, "SIGKILL", "was ended by SIGKILL"),
        (-11, "SIGSEGV", "was ended by SIGSEGV"),
        (-40, "signal 40", "was ended by signal 40"),
    ],
)
def test_an_exit_code_is_told_in_words(code: int, name: str | None, words: str) -> None:
    assert (signal_of(code), ending_of(code)) == (name, words)
