"""Another framework at the same work: a process of its own interpreter, asked over pipes (`peers/serve.py`)."""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.measure import Entry, Instant, Span, cores_for
from benchmarks.same_work import CHECK_ROUNDS, CHECK_TIMES, Outcome, PeerError, SameWork, averaged, compare, layers_of
from benchmarks.workloads import Workload
from fedlit.data.base import FederatedDataModule
from fedlit.engines.processes.children import ending_of
from fedlit.errors import ConfigError, nearest, require

SCRIPTS = Path(__file__).parent / "peers"
PACKAGES = {"plain": "PyTorch", "fedjax": "FedJAX", "pfl": "pfl-research", "flower": "Flower"}
"""What must be installed in a peer's interpreter; `peers/` has a script for each. `plain` is the hand-written loop in
a process a core, which fedlit's own interpreter can run."""
MAX_SILENCE_S = 600.0
"""Beyond the time that was asked for; the first rounds compile."""


@dataclass(frozen=True)
class Choice:
    """One `--peer NAME=PYTHON`."""

    name: str
    python: Path
    script: Path

    @classmethod
    def parse(cls, text: str) -> "Choice":
        """Read the option, and see that both exist."""
        name, equals, python = text.partition("=")
        require(
            bool(equals and python),
            f"--peer {text} has no interpreter. Write --peer NAME=PYTHON, as in pfl=/…/bin/python.",
        )
        if name not in PACKAGES:
            raise ConfigError(f"--peer {name} is not known. {nearest(name, PACKAGES)}Known: {', '.join(PACKAGES)}.")
        path = Path(python).expanduser()
        if not (path.is_file() and os.access(path, os.X_OK)):
            raise ConfigError(
                f"--peer {text}: {path} is not a program. Give the path of the Python in which {PACKAGES[name]} is "
                "installed; docs/peers.md says how to make one."
            )
        return cls(name, path, SCRIPTS / f"run_{name}.py")


class Peer:
    """A started process; `end` it."""

    def __init__(self, choice: Choice, folder: Path, max_silence_s: float = MAX_SILENCE_S) -> None:
        self.choice, self.folder, self.max_silence_s = choice, folder, max_silence_s
        self.said = folder / f"{choice.name}.stderr"
        line = [str(choice.python), str(SCRIPTS / "serve.py"), str(choice.script), str(folder)]
        env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        with self.said.open("wb") as said:
            try:
                # A session of its own: whatever it starts is found and ended with it, and Ctrl-C reaches fedlit alone.
                self.process = subprocess.Popen(
                    line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, env=env, start_new_session=True
                )
            except OSError as error:
                raise ConfigError(
                    f"--peer {choice.name}: {choice.python} cannot be started ({error.strerror}). Give the path of a "
                    "Python interpreter."
                ) from None

    def hello(self) -> dict[str, Any]:
        """What it says of itself once its packages are imported."""
        return self.hear(0)

    def ask(self, what: str, count: float = 0) -> dict[str, Any]:
        """Its answer to one request."""
        assert self.process.stdin is not None, "it was started with a pipe"
        with contextlib.suppress(BrokenPipeError):  # it is dead: said where its answer is missing
            self.process.stdin.write(json.dumps({"do": what, "count": count}).encode() + b"\n")
            self.process.stdin.flush()
        return self.hear(count if what == "seconds" else 0)

    def hear(self, seconds: float) -> dict[str, Any]:
        """The next line, or what became of it."""
        name, stdout = self.choice.name, self.process.stdout
        assert stdout is not None, "it was started with a pipe"
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            if not selector.select(seconds + self.max_silence_s):
                raise PeerError(
                    f"--peer {name} has been silent for {self.max_silence_s + seconds:g} s and was ended. "
                    f"{self.last_words()}Try it alone with one small --workload."
                )
        line = stdout.readline()
        if not line:
            raise PeerError(
                f"--peer {name} {ending_of(self.process.wait())} before it answered. {self.last_words()}Mend "
                "its environment (docs/peers.md), or leave out this --peer."
            )
        answer: dict[str, Any] = json.loads(line)
        if "missing" in answer:
            raise ConfigError(
                f"--peer {name}: {self.choice.python} has no package {answer['missing']}. Install it there "
                "(docs/peers.md says how), or give the interpreter that has it."
            )
        if "error" in answer:
            raise PeerError(
                f"--peer {name} failed with {answer['error']}. Mend its environment (docs/peers.md names versions that "
                "work), or leave out this --peer."
            )
        return answer

    def last_words(self) -> str:
        """The last line that it wrote to stderr."""
        lines = self.said.read_text(errors="replace").strip().splitlines()
        return f"It last wrote: {lines[-1].strip()[:300]}. " if lines else ""

    def rest(self) -> None:
        """Hold it still while others are measured: Ray's processes take a twentieth of a core when idle."""
        self.signal(signal.SIGSTOP)

    def signal(self, number: signal.Signals) -> None:
        """To it and everything that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def end(self) -> None:
        """End it and everything that it started."""
        self.signal(signal.SIGKILL)
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(BrokenPipeError):
                pipe.close() if pipe is not None else None
        self.process.wait()

    # ---- as an entry -------------------------------------------------------------------------------------------------

    def check(self, work: SameWork) -> Outcome:
        """The compared rounds, from the start."""
        for stale in self.folder.glob("after-*.npy"):
            stale.unlink()
        self.ask("start")
        steps = int(self.ask("rounds", CHECK_ROUNDS)["steps"])
        self.ask("write")
        return work.by_files(steps, self.folder, self.choice.name)

    def entry(self, hello: dict[str, Any], first_round_s: float) -> Entry:
        """To be measured in turns with the others."""
        threads, processes = int(hello["threads"]), int(hello["processes"])
        return Entry(
            self.choice.name, threads, 1, False, first_round_s, self.run, processes=processes, memory=self.peak_rss_mb
        )

    def run(self, seconds: float) -> Span:
        """Whole rounds for about so many seconds, timed here; it rests before and after."""
        self.signal(signal.SIGCONT)
        began = self.instant()
        done = self.ask("seconds", seconds)
        span = Span(int(done["steps"]), int(done["rounds"]), began, self.instant())
        self.rest()
        return span

    def instant(self) -> Instant:
        """All clocks; its processes count as ours."""
        now = Instant.now()
        ticks = sum(sum(int(field) for field in fields[11:15]) for fields in session(self.process.pid).values())
        return replace(now, own=now.own + ticks / os.sysconf("SC_CLK_TCK"))

    def peak_rss_mb(self) -> float:
        """The most memory that its processes held, each at its own time."""
        return sum(peak_of(pid) for pid in session(self.process.pid))


@contextlib.contextmanager
def beside(
    workload: Workload, data: FederatedDataModule, choices: Sequence[Choice], report: Callable[[str], None]
) -> Iterator[tuple[list[Entry], dict[str, Outcome]]]:
    """The peers' entries, after everyone has shown to do the same work; their processes are ended at the end."""
    cores, peers = cores_for(workload), []
    work = SameWork(workload, data, layers_of(workload))
    with TemporaryDirectory(prefix="fedlit-peers-") as folder, contextlib.ExitStack() as started:
        work.write(Path(folder), cores)
        report("compared rounds: hand-written loop, vectorized")
        outcomes = {
            "handwritten": averaged([work.by_hand() for _ in range(CHECK_TIMES)]),
            "vectorized": averaged([work.by_fedlit(cores, seed) for seed in range(CHECK_TIMES)]),
        }
        compare("fedlit", outcomes["vectorized"], outcomes["handwritten"])
        for choice in choices:
            report(f"compared rounds: {choice.name}")
            peer = Peer(choice, Path(folder))
            started.callback(peer.end)
            hello, began = peer.hello(), time.perf_counter()
            seen = [peer.check(work)]
            first_round_s = (time.perf_counter() - began) / CHECK_ROUNDS
            seen += [peer.check(work) for _ in range(CHECK_TIMES - 1)]
            outcomes[choice.name] = replace(averaged(seen), version=hello["version"])
            compare(choice.name, outcomes[choice.name], outcomes["handwritten"])
            peers.append(peer.entry(hello, first_round_s))
            peer.rest()
        yield peers, outcomes


def session(leader: int) -> dict[int, list[str]]:
    """Processes of the session that this one leads, itself among them: the fields of /proc/PID/stat after the name."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[3]) == leader:
                found[int(stat.parent.name)] = fields
    return found


def peak_of(pid: int) -> float:
    """The most memory that a process held, in MB; 0 where the system does not tell."""
    try:
        return int(Path(f"/proc/{pid}/status").read_text().split("VmHWM:")[1].split()[0]) / 1024
    except (OSError, IndexError):
        return 0.0
