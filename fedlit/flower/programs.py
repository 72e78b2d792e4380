"""Flower's own programs as children of this process: SuperLink, SuperNode, and the command that submits a run."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from fedlit.engines.processes import children
from fedlit.engines.processes.children import ending_of
from fedlit.errors import ConfigError, ProcessError

FLOWER = "1.41"
"""The minor version of Flower with which this was tried; its command line changes between minor versions."""
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
"""Flower reports its use, and looks for updates, unless it is told not to."""
TRUSTED = {"FORWARDED_ALLOW_IPS": "127.0.0.1"}
"""Who may say on whose behalf a request comes: uvicorn's default, whatever this user has set."""
_LOOPBACK = "127.0.0.1"
_PATIENCE_S = 5.0
_COMMAND_S = 120.0
_COLOURS = re.compile(r"\x1b\[\d+m")


@dataclass
class Child:
    """A program that ends with this process.

    Args:
        name: for errors.
        process: it, the leader of a group of its own.
        log: what it prints.
    """

    name: str
    process: "subprocess.Popen[bytes]"
    log: Path

    def check(self) -> None:
        """ProcessError if it has ended, with its last lines."""
        if self.process.poll() is not None:
            raise ProcessError(self.ending())

    def ending(self) -> str:
        """How it ended."""
        code = self.process.poll()
        return f"The {self.name} {'runs' if code is None else ending_of(code)}. {self.last_lines()}"

    def last_lines(self, count: int = 3) -> str:
        """The end of its log, without what it says of ordinary steps."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        told = [_COLOURS.sub("", line).strip() for line in lines if "INFO" not in line and line.strip()]
        return f"It said: {' / '.join(told[-count:])}."

    def end(self) -> None:
        """End it and what it has started: first ask, then kill."""
        for signum in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.process.pid, signum)
            except ProcessLookupError:
                break
            try:
                self.process.wait(_PATIENCE_S)
            except subprocess.TimeoutExpired:
                continue
        self.process.wait()


class Programs:
    """Starts Flower's programs.

    Args:
        folder: of their logs and of Flower's own files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = find_flower()
        self.started: list[Child] = []
        self.registered: dict[str, str] = {}
        """Flower's number of a node -> its name, for the keys that are registered with the SuperLink."""
        (folder / "flower").mkdir(exist_ok=True)

    @property
    def environment(self) -> dict[str, str]:
        """Of every program: nothing is reported, and its files are in the folder."""
        path = os.pathsep.join([str(self.bin), os.environ.get("PATH", "")])
        return {**os.environ, **QUIET, **TRUSTED, "PATH": path, "FLWR_HOME": str(self.folder / "flower")}

    def start(self, name: str, program: str, arguments: Sequence[str]) -> Child:
        """Start a program of Flower, which ends when this process does."""
        return self._start(name, [str(self.bin / program), *arguments])

    def start_own(self, name: str, module: str, arguments: Sequence[str]) -> Child:
        """Start a program of `fedlit.flower` with Flower's interpreter; it ends when this process does."""
        beside = Path(sys.executable)
        interpreter = beside if beside.parent == self.bin else self.bin / "python"
        return self._start(name, [str(interpreter), "-m", f"fedlit.flower.{module}", *arguments])

    def _start(self, name: str, program: Sequence[str]) -> Child:
        log = self.folder / f"{name.replace(' ', '-')}.log"
        command = [sys.executable, "-I", "-S", children.__file__, str(os.getpid()), *program]
        with log.open("ab") as output:
            process = subprocess.Popen(
                command, env=self.environment, stdout=output, stderr=output, stdin=subprocess.DEVNULL, process_group=0
            )
        self.started.append(Child(name, process, log))
        return self.started[-1]

    def check(self) -> None:
        """ProcessError if one of them has ended."""
        for child in self.started:
            child.check()

    def processes(self) -> list[tuple[str, int]]:
        """Name and number of each."""
        return [(child.name, child.process.pid) for child in self.started]

    def submit(self, app: Path, address: str, security: Sequence[str]) -> str:
        """Submit an app to the SuperLink at this address; returns the run's id.

        Args:
            app: its folder.
            address: host:port.
            security: lines of Flower's configuration: `insecure`, or the certificate.
        """
        return str(self._command(["run", str(app), "fedlit"], address, security)["run-id"])

    def register(self, key: Path, address: str, security: Sequence[str]) -> None:
        """Let the node with this public key take part, under the name of the key's file."""
        words = ["supernode", "register", str(key), "fedlit", "--name", key.stem]
        self.registered[str(self._command(words, address, security)["node-id"])] = key.stem

    def _command(self, words: Sequence[str], address: str, security: Sequence[str]) -> Mapping[str, object]:
        """Run a command of Flower on the SuperLink at this address; ProcessError if it is refused."""
        lines = ["[superlink]", 'default = "fedlit"', "[superlink.fedlit]", f'address = "{address}"', *security]
        (self.folder / "flower" / "config.toml").write_text("\n".join(lines) + "\n")
        command = [str(self.bin / "flwr"), *words, "--format", "json"]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=_COMMAND_S)
        answer = plain_answer(done.stdout)
        if not answer.get("success"):
            why = " ".join(str(answer.get("error-message", done.stderr or done.stdout)).split())
            raise ProcessError(f"The SuperLink at {address} refused flwr {' '.join(words[:2])}: {why}")
        return answer

    def end(self) -> None:
        """End all of them, the last first."""
        while self.started:
            self.started.pop().end()


def plain_answer(text: str) -> Mapping[str, object]:
    """The JSON that a program printed, possibly after other lines."""
    start = text.find("{")
    try:
        answer = json.loads(text[start:])
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


def find_flower() -> Path:
    """The folder of Flower's programs; ConfigError if it is missing, or of another version."""
    install = f'pip install "fedlit[flower]", or pip install "flwr~={FLOWER}.0"'
    beside = Path(sys.executable).parent
    found = beside / "flower-superlink"
    elsewhere = shutil.which("flower-superlink")
    if not found.exists() and elsewhere is None:
        raise ConfigError(f"Flower is not installed. Install it: {install}.")
    if found.exists():
        try:
            installed = version("flwr")
        except PackageNotFoundError:
            installed = ""
        if installed and not installed.startswith(f"{FLOWER}."):
            raise ConfigError(f"Flower {installed} is installed, but this fedlit needs {FLOWER}: {install}.")
        return beside
    assert elsewhere is not None
    return Path(elsewhere).parent


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((_LOOPBACK, 0))
        return int(probe.getsockname()[1])


def wait_for_port(address: str, child: Child, patience: float = 60.0) -> None:
    """Wait until a child listens at this host:port."""
    host, _, port = address.rpartition(":")
    until = time.monotonic() + patience
    while time.monotonic() < until:
        child.check()
        with socket.socket() as probe:
            if probe.connect_ex((host, int(port))) == 0:
                return
        time.sleep(0.1)
    raise ProcessError(f"The {child.name} does not listen after {patience:g} s. {child.last_lines()}")
