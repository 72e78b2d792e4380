"""A command in a real terminal of a given width, and what a reader sees: enough of one for rich's live display."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from collections.abc import Iterator
from pathlib import Path

CONTROL = re.compile(r"\x1b\[(\??[\d;]*)([A-Za-z])")


class Screen:
    """Lines of text that a cursor moves in, without an end below."""

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.lines: list[str] = [""]
        self.row = self.column = 0

    def feed(self, text: str) -> None:
        """Write text with its control sequences."""
        place = 0
        while place < len(text):
            if found := CONTROL.match(text, place):
                self._control(found[1], found[2])
                place = found.end()
            else:
                self._write(text[place])
                place += 1

    def _control(self, number: str, kind: str) -> None:
        if kind == "A":
            self.row -= int(number or 1)
        elif kind == "K":
            self.lines[self.row] = "" if number == "2" else self.lines[self.row][: self.column]
        else:
            assert kind in "mhl", f"a control sequence that this screen does not know: {number}{kind}"

    def _write(self, letter: str) -> None:
        if letter == "\r":
            self.column = 0
        elif letter == "\n":
            self._down()
        else:
            if self.column == self.columns:
                self._down()
                self.column = 0
            line = self.lines[self.row].ljust(self.column)
            self.lines[self.row] = line[: self.column] + letter + line[self.column + 1 :]
            self.column += 1

    def _down(self) -> None:
        self.row += 1
        self.lines += [""] * (self.row + 1 - len(self.lines))

    def seen(self) -> list[str]:
        """The lines that hold anything."""
        return [line.rstrip() for line in self.lines if line.strip()]


def screens(command: list[str], columns: int, folder: Path) -> Iterator[list[str]]:
    """What the screen shows each time the command has written something, until it ends."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    environment |= {"TERM": "xterm-256color"}
    process = subprocess.Popen(command, stdin=its, stdout=its, stderr=its, cwd=folder, env=environment)
    os.close(its)
    screen, rest = Screen(columns), b""
    try:
        while chunk := read(ours):
            rest += chunk
            text = rest.decode(errors="ignore")
            if rest.decode(errors="replace").endswith(("\ufffd", "\x1b")) or re.search(r"\x1b\[[\d;?]*$", text):
                continue  # the rest of a letter or of a control sequence is on its way
            screen.feed(text)
            rest = b""
            yield screen.seen()
    finally:
        os.close(ours)
        process.wait(60)


def read(terminal: int) -> bytes:
    """What was written; nothing when the command has ended."""
    try:
        return os.read(terminal, 4096)
    except OSError:  # Linux says so when nobody has the other side open
        return b""
