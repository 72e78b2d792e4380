"""Kills in a real federation: who goes on, how long it takes to notice, and that nothing is lost."""

import os
import signal
import time
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from threading import Timer

import pytest
from pytorch_lightning import Callback, LightningModule, Trainer

from fedlit.cli.data_export import export_clients, names_of_clients
from fedlit.cli.fit import fit
from fedlit.cli.flower_run import train
from fedlit.config.flower_cli import FlowerCLI
from fedlit.errors import ProcessError
from fedlit.experiments.conformance.problem import largest_gap
from fedlit.flower.link import FlowerLink
from fedlit.flower.superlink import Listening, start_superlink, submitted
from fedlit.flower.timings import family_of
from fedlit.flower.trial import Trial, trial
from fedlit.remote.loop import RemoteLoop
from fedlit.results.events import read_events
from tests.flower.compared import difference, held_by_nodes

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(find_spec("flwr") is None, reason='Flower is not installed: pip install "fedlit[flower]"'),
]
NODES, TRAINING_S = 4, 3.0
WORDS = [
    *("--wandb", "disabled", "--data", "Synthetic", "--data.num_clients", str(NODES)),
    *("--trainer.clients_per_round", str(NODES), "--trainer.eval_every", "100", "--trainer.enable_progress_bar"),
    *("false", "--model", "FedBC", "--model.start_from", "local", "--model.dual_lr", "0.1", "--model.lr", "0.01"),
    *("--model.net", "fedlit.Softmax", "--model.net.num_features", "60", "--model.net.num_classes", "10"),
    *("--model.local_steps", "3000"),  # some seconds, so that a kill can fall into them
]


class Accidents(Callback):
    """Does things at moments of a run: (round, moment) -> what; a moment is `before`, `in` or `after` the round."""

    def __init__(self, what: Mapping[tuple[int, str], Callable[[], None]]) -> None:
        self.what, self.done_at = what, 0.0

    def _do(self, number: int, moment: str) -> None:
        if (action := self.what.get((number, moment))) is not None:
            self.done_at = time.monotonic()
            action()

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        number = trainer.loop.rounds_done + 1  # type: ignore[attr-defined]  # FederatedTrainer's
        self._do(number, "before")
        if (number, "in") in self.what:
            Timer(TRAINING_S + 1, self._do, (number, "in")).start()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._do(trainer.loop.rounds_done, "after")  # type: ignore[attr-defined]


# ---- nodes -----------------------------------------------------------------------------------------------------------


class Place:
    """The processes of nodes 1, 2 and 3: of the first the worker is killed, of the second the SuperNode, then all."""

    link: FlowerLink

    def __init__(self, place: Trial, names: list[str], listening: Listening) -> None:
        self.place, self.names, self.listening = place, names, listening

    def programs_of(self, number: int) -> list[str]:
        return [f"{program} of {self.names[number]}" for program in ("SuperNode", "relay")]

    def kill(self) -> None:
        started = {child.name: child for child in self.place.programs.started}
        for name in (*self.programs_of(2)[:1], *self.programs_of(3)):
            os.kill(started[name].process.pid, signal.SIGKILL)
        for number in (1, 3):
            worker = self.place.workers.pop(number)
            os.kill(worker, signal.SIGKILL)
            os.waitpid(worker, 0)

    def start_again(self) -> None:
        gone = {name for number in (2, 3) for name in self.programs_of(number)}
        for child in [child for child in self.place.programs.started if child.name in gone]:
            child.end()
            self.place.programs.started.remove(child)
        for number in (1, 3):
            self.place.workers[number] = self.place.fork_worker(number)
        for number in (2, 3):
            self.place.start_node(number, self.names[number], self.listening)
        self.link.wait_for_nodes(NODES, 200, lambda: None)


def test_nodes_that_are_killed_go_on_with_their_rows_and_a_replay_has_the_same_bits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """At three moments: before the first round, while they train, and between two rounds."""
    caplog.set_level("WARNING", "fedlit")
    words, real, replay = [*WORDS, "--trainer.rounds", "7"], tmp_path / "real", tmp_path / "replay"
    with trial(NODES) as place:
        cli = FlowerCLI([*words, "--run", str(real)])
        export_clients(cli.datamodule, 0, place.data)
        names = names_of_clients(cli.datamodule)
        listening = place.start_nodes(names, tmp_path / "rows", secure=False)
        victims = Place(place, names, listening)
        kills, starts = ((1, "before"), (3, "in"), (5, "after")), ((2, "before"), (4, "before"), (7, "before"))
        accidents = Accidents(dict.fromkeys(kills, victims.kill) | dict.fromkeys(starts, victims.start_again))
        cli.trainer.callbacks.append(accidents)
        with submitted(place.programs, listening, place.folder, 120) as link:
            victims.link = link
            assert train(cli, link, link.wait_for_nodes(NODES, 300, place.programs.check)) == 0
    events = read_events(real / "events.jsonl")
    missing = {number: events.of(number).trained[0].missing for number in range(1, 8)}
    print(caplog.text, missing, [events.of(number).trained[0].answered for number in range(1, 8)])
    assert {number for number in missing if not missing[number]} >= {2, 4, 7}, "they come back"
    assert missing[1].keys() == missing[6].keys() == {1, 2, 3}
    replayed = [*words, "--trainer.engine", "sequential", "--replay", str(real / "events.jsonl"), "--run", str(replay)]
    assert fit(replayed) == 0
    loop = cli.trainer.loop
    assert isinstance(loop, RemoteLoop)
    assert difference(real, replay, held_by_nodes(tmp_path / "rows", names, loop.run_id)) == []


# ---- the server ------------------------------------------------------------------------------------------------------


def kill_app(place: Trial) -> None:
    """Kill the process of the ServerApp."""
    [app, *_] = [one for one in family_of(superlink_of(place), ()) if b"flwr-serverapp" in command_of(one)]
    os.kill(app, signal.SIGKILL)


def command_of(number: int) -> bytes:
    return Path(f"/proc/{number}/cmdline").read_bytes()


def superlink_of(place: Trial) -> int:
    return next(number for name, number in place.programs.processes() if name == "SuperLink")


def kill_superlink(place: Trial) -> None:
    os.kill(superlink_of(place), signal.SIGKILL)


def test_a_run_whose_superlink_or_app_is_killed_is_resumed_without_a_loss(tmp_path: Path) -> None:
    """At three moments each; the resumed run has the bits of one that nobody has disturbed."""
    words, noticed = [*WORDS, "--trainer.rounds", "2"], {}
    with trial(NODES) as place:
        whole = FlowerCLI([*words, "--run", str(tmp_path / "whole")])
        export_clients(whole.datamodule, 0, place.data)
        names = names_of_clients(whole.datamodule)
        listening = place.start_nodes(names, tmp_path / "rows", secure=False)
        with submitted(place.programs, listening, place.folder, 120) as link:
            assert train(whole, link, link.wait_for_nodes(NODES, 300, place.programs.check)) == 0
        for what in ("SuperLink", "app"):
            for moment in ((1, "before"), (1, "in"), (1, "after")):
                folder = tmp_path / f"{what} {moment}"
                cli = FlowerCLI([*words, "--run", str(folder)])
                accidents = Accidents({moment: partial(kill_superlink if what == "SuperLink" else kill_app, place)})
                with submitted(place.programs, listening, place.folder, 120) as link:
                    present = link.wait_for_nodes(NODES, 300, place.programs.check)
                    cli.trainer.callbacks.append(accidents)
                    with pytest.raises(ProcessError, match="The round is undone") as found:
                        train(cli, link, present)
                    noticed[what, moment] = round(time.monotonic() - accidents.done_at, 1)
                    print(what, moment, noticed[what, moment], "s:", found.value)
                if what == "SuperLink":
                    gone = next(child for child in place.programs.started if child.name == "SuperLink")
                    gone.end()
                    place.programs.started.remove(gone)
                    start_superlink(place.programs, listening)
                began = time.monotonic()
                again = FlowerCLI([*words, "--run", str(folder), "--resume"])
                with submitted(place.programs, listening, place.folder, 120) as link:
                    assert train(again, link, link.wait_for_nodes(NODES, 300, place.programs.check)) == 0
                print("resumed and finished within", round(time.monotonic() - began, 1), "s")
                gap = largest_gap(dict(whole.trainer.loop.server.model), dict(again.trainer.loop.server.model))
                assert gap == 0, (what, moment)
