"""Runs in a peer's interpreter: `python serve.py PEER.py FOLDER`. Does the rounds that it is asked for over stdin.

A request and its answer are one line of JSON each. `PEER.py` has a class `Peer`; this file needs numpy alone.

    {"do": "start"}                     back to the initial weights and the first cohort
    {"do": "rounds", "count": 2}        so many rounds of the schedule         -> {"steps": ..., "rounds": ...}
    {"do": "seconds", "count": 3.0}     whole rounds for about so long         -> {"steps": ..., "rounds": ...}
    {"do": "write"}                     the weights as they are now, in after-0.npy, after-1.npy, ...
"""

import ctypes
import importlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np


class Work:
    """The folder that fedlit wrote."""

    def __init__(self, folder: Path) -> None:
        settings = json.loads((folder / "work.json").read_text())
        self.folder = folder
        self.layers: list[str] = settings["layers"]
        self.lr: float = settings["lr"]
        self.batch_size: int = settings["batch_size"]
        self.local_epochs: int = settings["local_epochs"]
        self.cores: int = settings["cores"]
        self.x, self.y = load(folder / "x.npy"), load(folder / "y.npy")
        self.clients = np.split(load(folder / "rows.npy"), np.cumsum(load(folder / "sizes.npy"))[:-1])
        self.cohorts: list[list[int]] = load(folder / "cohorts.npy").tolist()
        self.weights = [load(folder / f"weight-{k}.npy") for k in range(settings["weights"])]

    def steps_of(self, client: int) -> int:
        """Local steps of a client in a round; the last batch of an epoch may be smaller."""
        return self.local_epochs * -(-len(self.clients[client]) // self.batch_size)


class Rounds:
    """The schedule of cohorts, and how far a peer is in it."""

    def __init__(self, peer: Any, work: Work) -> None:
        self.peer, self.work, self.done = peer, work, 0

    def start(self, count: float) -> dict[str, Any]:
        """Back to the beginning."""
        self.done = 0
        self.peer.start(self.work.weights)
        return {}

    def rounds(self, count: float) -> dict[str, Any]:
        """`count` rounds."""
        steps = sum(self.one_round() for _ in range(int(count)))
        return {"steps": steps, "rounds": int(count)}

    def seconds(self, count: float) -> dict[str, Any]:
        """Rounds until the time is over, at least one."""
        ended, before, steps = time.perf_counter() + count, self.done, self.one_round()
        while time.perf_counter() < ended:
            steps += self.one_round()
        return {"steps": steps, "rounds": self.done - before}

    def write(self, count: float) -> dict[str, Any]:
        """The weights, in the order and the shapes in which they came."""
        for k, value in enumerate(self.peer.weights()):
            np.save(self.work.folder / f"after-{k}.npy", np.asarray(value), allow_pickle=False)
        return {}

    def one_round(self) -> int:
        """The next cohort of the schedule, which begins anew after its end; returns the local steps."""
        cohort = self.work.cohorts[self.done % len(self.work.cohorts)]
        self.done += 1
        steps: int = self.peer.round(cohort)
        return steps


def load(file: Path) -> np.ndarray:
    """An array, never a pickle."""
    array: np.ndarray = np.load(file, allow_pickle=False)
    return array


def new_peer(script: Path, work: Work) -> Any:
    """The `Peer` of a script. By its name, so that processes which the peer starts can import it too."""
    sys.path.insert(0, str(script.parent))
    return importlib.import_module(script.stem).Peer(work)


def end_with_parent() -> None:
    """Even if fedlit is killed while this process is held still, where the system can (Linux)."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def main() -> None:
    """Answer until stdin ends."""
    end_with_parent()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a library prints is no answer
    try:
        work = Work(Path(sys.argv[2]))
        peer = new_peer(Path(sys.argv[1]), work)
        rounds = Rounds(peer, work)
        answers.write(
            json.dumps({"version": peer.version, "processes": peer.processes, "threads": peer.threads}) + "\n"
        )
        for line in sys.stdin:
            request = json.loads(line)
            answer = getattr(rounds, request["do"])(request.get("count", 0))
            answers.write(json.dumps(answer) + "\n")
    except ModuleNotFoundError as error:
        answers.write(json.dumps({"missing": error.name}) + "\n")
        raise
    except Exception as error:
        answers.write(json.dumps({"error": f"{type(error).__name__}: {error}"}) + "\n")
        raise


if __name__ == "__main__":
    main()
