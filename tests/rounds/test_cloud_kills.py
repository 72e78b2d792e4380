"""kill -9 in a cloud, at chosen moments of a round: the resumed run has the same bits, clock and servers included."""

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from pyarrow import parquet

from fedlit.results.records import read_metrics
from tests.dying import Moment, run_until
from tests.forked import PROCESSES, Fork
from tests.trainer.test_resume import FIT_SECONDS, assert_same_bits, finish, outcome, rounds_saved

ROUNDS = 34
CLOUD = (
    f"fit --config synthetic_fedbcd.yaml --trainer.rounds {ROUNDS} --trainer.eval_every 1 --trainer.checkpoint_every 2 "
    "--data.num_clients 9 --data.size_sigma 1 --trainer.clients_per_round 2 --trainer.sampler earliest "
    "--trainer.clock.dropout 0 --trainer.cloud.servers 3 --trainer.cloud.first 2 --trainer.cloud.iterations 2 "
    "--trainer.engine sequential --trainer.enable_progress_bar false --wandb disabled"
)
"""FedBCD, K_z = 2; a checkpoint every second round, so that a kill may lose a whole round and its rows."""


MOMENTS = {
    "gathering": Moment("fedlit.rounds.gathering", "Gatherer.cohorts", 1),
    "training, before it": Moment("fedlit.engines.sequential", "SequentialEngine.train", 3),
    "training, in a step": Moment("fedlit.algorithms.fedbcd", "FedBCD.training_step", 23),
    "mixing, the second time of a round": Moment("fedlit.rounds.cloud", "CloudProtocol.mix", 6, after=True),
    "both servers have stepped, one has buffers": Moment("fedlit.server.server", "Server.finish_step", 9, after=True),
    "rows are kept": Moment("fedlit.client.states", "ClientStates.update", 3, after=True),
    "evaluation": Moment("fedlit.evaluation.evaluator", "Evaluator._score_together", 6),
    "the row is written, the round not yet counted": Moment(
        "fedlit.results.folder", "RunFolder.append_metrics", 3, after=True
    ),
    "the round counts, no checkpoint has it": Moment("fedlit.rounds.round", "Round.commit", 3, after=True),
    "servers are newer than the checkpoint": Moment("fedlit.results.folder", "RunFolder.write_servers", 2, after=True),
    "writing a checkpoint": Moment("fedlit.results.folder", "_duplicate", 2),
    "between rounds": Moment("fedlit.rounds.loop", "FederatedLoop.on_advance_start", 4),
}


def killed(moment: Moment, words: str) -> int:
    return Fork(PROCESSES.Process(target=run_until, args=(moment, words))).wait(FIT_SECONDS)


def all_of(folder: Path) -> dict[str, Any]:
    """What a run came to, with simulated time, the records of servers, and all servers' models and clocks."""
    loop = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)["loops"]["fit_loop"]
    return outcome(folder) | {
        "seconds": [row["time/sim_s"] for row in read_metrics(folder / "metrics.csv")],
        "servers": parquet.read_table(folder / "servers.parquet").to_pydict(),
        "federation": loop["federation"],
    }


@pytest.mark.parametrize("protocol", ["async", pytest.param("rigorous", marks=pytest.mark.slow)])
def test_a_cloud_killed_at_twelve_moments_ends_with_the_same_bits_and_the_same_clock(
    tmp_path: Path, protocol: str
) -> None:
    words = f"{CLOUD} --trainer.cloud.protocol {protocol}"
    finish(f"{words} --run {tmp_path / 'whole'}")
    folder, saved = tmp_path / "killed", []
    for moment in MOMENTS.values():
        assert killed(moment, f"{words} --run {folder} --resume") == -signal.SIGKILL, moment
        saved.append(rounds_saved(folder) if (folder / "checkpoints" / "last.ckpt").exists() else 0)
    assert saved == sorted(saved)
    assert saved[-1] < ROUNDS, saved
    assert len(set(saved)) >= 8, "the kills are spread over the run"
    finish(f"{words} --run {folder} --resume")
    assert_same_bits(all_of(folder), all_of(tmp_path / "whole"))
