"""Rows on disk: `python -m benchmarks.rows`. FedBC that keeps a LeNet of each client, of more than memory holds.

One run to its end, and one that is killed (SIGKILL) and resumed: memory, the time of rounds and of checkpoints as rows
become more, and whether both runs end with the same bits.
"""

import argparse
import hashlib
import json
import logging
import os
import resource
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.profilers import SimpleProfiler

from fedlit.algorithms.fedbc import FedBC
from fedlit.client.states_location import StatesPlace
from fedlit.data.generated import Generated
from fedlit.models import LeNet
from fedlit.results.folder import RunFolder
from fedlit.server.base import ServerCallback
from fedlit.trainer.checkpoint import read_checkpoint
from fedlit.trainer.trainer import FederatedTrainer

PHASES = ("[fedlit] gather", "[fedlit] server")
"""Of a round: in the first rows are read, in the second they are written."""
TRAINING = "[fedlit] train"
"""Of a round: the same work in every one, so what becomes slower here is the machine."""
PAUSE_S = 0.1
"""Between two plain writes, about as long as clients train."""


class ProcessorTime(ServerCallback):
    """Processor seconds of each round and its checkpoint: what else the machine does counts less there."""

    decides = False

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._before = 0.0

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A round begins."""
        self._before = time.process_time()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """It is over."""
        self.seconds.append(time.process_time() - self._before)


@dataclass(frozen=True)
class Work:
    """How much is asked."""

    clients: int
    rounds: int
    each_round: int
    checkpoint_every: int
    states: StatesPlace

    def fit(self, folder: Path) -> dict[str, Any]:
        """Begin or continue the run in the folder; returns what this process saw of it."""
        processor = ProcessorTime()
        trainer = FederatedTrainer(
            rounds=self.rounds,
            clients_per_round=self.each_round,
            eval_every=self.rounds,
            checkpoint_every=self.checkpoint_every,
            states=self.states,
            store_local_models=False,
            run=folder,
            resume=True,
            profiler="simple",
            enable_progress_bar=False,
            callbacks=[processor],
        )
        logging.getLogger("fedlit").setLevel(logging.WARNING)  # the profile would be a page
        data = Generated(num_clients=self.clients, samples_per_client=8, eval_clients=100)
        trainer.fit(FedBC(LeNet(), start_from="local", local_steps=1, batch_size=4, lr=0.01), datamodule=data)
        profiler = trainer.profiler  # type: ignore[attr-defined]  # set by Lightning's constructor
        assert isinstance(profiler, SimpleProfiler)
        file = trainer.loop.states.file
        return {
            "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
            "touched": len(trainer.loop.states.touched),
            "file_gb": 0.0 if file is None else file.stat().st_size / 1e9,
            "checkpoint_s": profiler.recorded_durations["[fedlit] checkpoint"],
            "rows_s": [sum(pair) for pair in zip(*(profiler.recorded_durations[name] for name in PHASES), strict=True)],
            "training_s": profiler.recorded_durations[TRAINING],
            "processor_s": processor.seconds,
            "round_s": [row["time/round_s"] for row in trainer.loop.history.rows[1:]],
        }


def started(work: Work, folder: Path) -> "subprocess.Popen[bytes]":
    """The run in a process of its own, whose memory is nobody else's."""
    return subprocess.Popen([sys.executable, "-m", "benchmarks.rows", "--play", json.dumps(asdict(work)), str(folder)])


def whole(work: Work, folder: Path) -> dict[str, Any]:
    """The run to its end; returns what its process saw."""
    ended = started(work, folder).wait()
    if ended:
        raise SystemExit(f"the run in {folder} ended with {ended}")
    seen: dict[str, Any] = json.loads((folder / "seen.json").read_text())
    return seen


def kill_after(work: Work, folder: Path, rounds: int) -> None:
    """The run until so many rounds are done, and not an instant longer."""
    process, metrics = started(work, folder), folder / "metrics.csv"
    while not metrics.exists() or metrics.read_bytes().count(b"\n") < rounds + 2:  # the header, and round 0
        if process.poll() is not None:
            raise SystemExit(f"the run in {folder} ended before it could be killed")
        time.sleep(0.01)
    process.kill()
    process.wait()


def plain_writes(path: Path, writes: int, size: int) -> list[float]:
    """Seconds of each of so many writes of this size, one after the other into a file that grows: no fedlit in it.

    What becomes slower here is the machine's, such as memory for the file that it uses for the first time.
    """
    content, seconds = os.urandom(size), []
    with path.open("wb", buffering=0) as file:
        for _ in range(writes):
            began = time.perf_counter()
            file.write(content)
            seconds.append(time.perf_counter() - began)
            time.sleep(PAUSE_S)
    path.unlink()
    return seconds


def bits(folder: Path) -> dict[str, str]:
    """Fingerprints of what a run on disk came to: z, numbers of clients, checksums of their rows."""
    content = read_checkpoint(RunFolder(folder).last)
    assert content is not None
    kept = content["loops"]["fit_loop"]["clients"]
    stored = kept["stored"]
    rows = sorted(zip(stored["clients"].tolist(), stored["checksums"].tolist(), strict=True))
    numbers = [value.numpy().tobytes() for value in kept["rows"].values()]
    z = [value.numpy().tobytes() for value in content["state_dict"].values()]
    parts = {"z": b"".join(z), "numbers": b"".join(numbers), "rows": str(rows).encode()}
    return {name: hashlib.sha256(part).hexdigest()[:16] for name, part in parts.items()}


def tenth(values: list[float], k: int) -> float:
    """Median of the k-th tenth, from 1 on."""
    size = len(values) // 10
    return median(values[(k - 1) * size : k * size])


def told(name: str, seen: dict[str, Any]) -> str:
    """A run in a few lines."""
    rounds, saves = seen["round_s"], seen["checkpoint_s"]
    kinds = {
        "a round": rounds,
        "its processor time": seen["processor_s"],
        "reading and writing rows, and the server's step": seen["rows_s"],
    }
    flat = {name: (tenth(values, 2), tenth(values, 10)) for name, values in kinds.items()}
    lines = [
        f"  {name}: {second:.3f} s in the second tenth, {last:.3f} s in the last ({last / second:.2f} times)\n"
        for name, (second, last) in flat.items()
    ]
    relative = [own / training for own, training in zip(rounds, seen["training_s"], strict=True)]
    lines.append(
        f"  a round over its clients' training, the same work in each: {tenth(relative, 2):.2f} in the second tenth, "
        f"{tenth(relative, 10):.2f} in the last ({tenth(relative, 10) / tenth(relative, 2):.2f} times)\n"
    )
    return (
        f"{name}: {len(rounds)} rounds, {seen['touched']:,} clients met, {seen['file_gb']:.2f} GB on disk\n"
        f"  peak of resident memory {seen['peak_gb']:.2f} GB\n"
        + "".join(lines)
        + f"  a checkpoint: {median(saves[:3]):.3f} s at the beginning, {median(saves[-3:]):.3f} s at the end\n"
    )


def main() -> None:
    """A few lines for each run, and whether the killed one has the same bits."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rows", description=__doc__)
    parser.add_argument("folder", type=Path, help="where the runs are written; it needs 2.5 times the rows' size")
    parser.add_argument("--clients", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=230, help="230 rounds of 100 meet 20,000 of 100,000 clients")
    parser.add_argument("--clients-per-round", type=int, default=100)
    parser.add_argument("--checkpoint-every", type=int, default=10)
    parser.add_argument("--memory-rounds", type=int, default=40, help="of a shorter run with rows in memory; 0: none")
    parser.add_argument("--play", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.play:
        seen = Work(**json.loads(args.play)).fit(args.folder)
        (args.folder / "seen.json").write_text(json.dumps(seen))
        return
    each = (args.clients_per_round, args.checkpoint_every)
    work = Work(args.clients, args.rounds, *each, "disk")
    if args.memory_rounds:
        short = Work(args.clients, args.memory_rounds, *each, "memory")
        sys.stdout.write(told("rows in memory", whole(short, args.folder / "memory")))
    seen = whole(work, args.folder / "whole")
    sys.stdout.write(told("rows on disk", seen))
    size = int(seen["file_gb"] * 1e9 / args.rounds)
    plain = plain_writes(args.folder / "plain.bin", args.rounds, size)
    second, last = tenth(plain, 2), tenth(plain, 10)
    sys.stdout.write(f"the same bytes by plain writes: {second:.3f} s in the second tenth, {last:.3f} s in the last\n")
    kill_after(work, args.folder / "killed", args.rounds * 2 // 3 + args.checkpoint_every // 2)
    whole(work, args.folder / "killed")
    one, other = bits(args.folder / "whole"), bits(args.folder / "killed")
    sys.stdout.write(
        f"killed after two thirds and resumed: {'the same bits' if one == other else 'OTHER BITS'} {other}\n"
    )


if __name__ == "__main__":
    main()
