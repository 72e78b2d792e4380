"""What a run says while it goes and at its end: the papers' words, and how old a measurement is."""

import io
import re
import sys
from pathlib import Path

import pytest
from rich.console import Console

from fedlit import FedAvg
from fedlit.engines.choose import EngineName
from fedlit.engines.progress import TrainingProgress
from fedlit.metrics.catalogue import METRICS
from fedlit.trainer.progress_bar import Pace, RoundView, format_metrics
from fedlit.trainer.summary import result_table
from tests.conftest import TINY, Call
from tests.problems import SIZES, run, tiny_net
from tests.terminal import screens

VALUES = {"train/loss": 0.5, "global/acc": 0.8, "min_user/acc": 0.4, "users/acc_min": 0.1}


def test_min_user_is_the_smallest_client_and_not_the_worst_user() -> None:
    assert format_metrics(VALUES) == "loss 0.500  global 80.0%  min user 40.0%"


def test_accuracies_of_an_earlier_round_say_how_old_they_are() -> None:
    assert format_metrics(VALUES, age=1).endswith("min user 40.0%  (measured 1 round ago)")
    assert format_metrics(VALUES, age=3).endswith("(measured 3 rounds ago)")
    assert format_metrics({"train/loss": 0.5}, age=3) == "loss 0.500"


def test_a_run_that_is_evaluated_now_and_then_says_so_in_its_lines(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedlit.trainer.progress_bar._SECONDS_BETWEEN_LINES", 0.0)
    out = call(f"fit {TINY.replace('--trainer.enable_progress_bar false', '--trainer.eval_every 2')}").out
    lines = re.findall(r"round (\d)/3 .*", out)
    assert lines == ["1", "2", "3"]
    aged = re.findall(r"round (\d)/3 .*\(measured 1 round ago\)", out)
    assert aged == ["1"], "round 1 shows what the initial model was worth; 2 and 3 are evaluated"


def test_the_last_table_calls_a_metric_what_the_catalogue_calls_it(call: Call, workplace: Path) -> None:
    out = call(f"fit {TINY}").out
    for name in ("global/acc", "min_user/acc", "max_user/acc", "users/acc_min", "users/acc_max"):
        assert re.search(rf"{re.escape(METRICS[name].label)} .*{name}", out), name


TALKING = """\
import logging, time
from fedlit import ServerCallback


class Talking(ServerCallback):
    def on_cohort_trained(self, trainer, client, cohort):
        logging.getLogger("fedlit").info(f"a line of round {cohort.number}")
        print(f"a print of round {cohort.number}")
        time.sleep(0.4)
"""
METRICS_SHOWN = ("loss ", "global ", "local ", "min user ", "max user ")


@pytest.mark.parametrize("columns", [80, pytest.param(120, marks=pytest.mark.slow)])
def test_a_terminal_shows_one_bar_that_nothing_is_cut_from(workplace: Path, columns: int) -> None:
    (workplace / "talking.py").write_text(TALKING)
    words = TINY.replace("--trainer.enable_progress_bar false", "--trainer.callbacks talking.Talking")
    seen = list(screens([sys.executable, "-m", "fedlit_start", "fit", *words.split()], columns, workplace))
    last = seen[-1]
    for number in (1, 2, 3):
        assert last.count(f"a line of round {number}") == last.count(f"a print of round {number}") == 1
    assert all(len([line for line in screen if re.match(r"round \d/3 ", line)]) <= 1 for screen in seen), "stale bars"
    (bar,) = [place for place, line in enumerate(last) if line.startswith("round 3/3 ")]
    assert bar > last.index("a print of round 3"), "lines stand above the bar"
    below = "\n".join(last[bar:])
    assert [word for word in METRICS_SHOWN if not re.search(rf"{word}\d", below)] == []
    during = "\n".join("  ".join(screen) for screen in seen)
    assert re.search(r"clients 2/2  [\d,.]+ steps/s", during), "a round shows how far it is"
    assert re.search(r"\d s left", during)


@pytest.mark.parametrize("columns", range(26, 140, 3))
def test_whatever_the_width_each_word_is_whole(columns: int) -> None:
    view = RoundView(Pace(rounds=1000, done=999), TrainingProgress())
    view.progress.begin(100, 1000)
    view.progress.count(clients=90, steps=900)
    view.words = format_metrics(VALUES | {"max_user/acc": 0.9, "local/acc": 0.7}, age=3)
    console = Console(file=io.StringIO(), width=columns)
    with console.capture() as drawn:
        console.print(view)
    said = drawn.get()
    assert all(len(line) <= columns for line in said.splitlines()), said
    for words in (
        "round 999/1000",
        "0:00:00",
        "clients 90/100",
        " steps/s",
        "max user 90.0%",
        "(measured 3 rounds ago)",
    ):
        assert words in said, said


def test_time_left_is_known_however_long_a_round_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("fedlit.trainer.progress_bar.time.monotonic", lambda: now)
    pace = Pace(rounds=10, done=0)
    assert pace.seconds_left(0.0) is None
    now = 60.0
    assert pace.seconds_left(0.25) == pytest.approx(10 * 240 - 60), "of a first round whose quarter took a minute"
    now = 300.0  # it was compiled, and is slower than the others
    pace.count(1)
    assert pace.seconds_left(0.0) == pytest.approx(9 * 300)
    now = 500.0
    pace.count(2)
    now = 550.0
    assert pace.seconds_left(0.1) == pytest.approx(8 * 200 - 50)
    pace.count(10)
    assert pace.seconds_left(0.0) == 0


def test_compiling_does_not_count_in_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("fedlit.trainer.progress_bar.time.monotonic", lambda: now)
    progress = TrainingProgress()
    pace = Pace(rounds=10, done=0, progress=progress)
    with progress.preparing():
        now = 60.0
    now = 61.0
    assert pace.seconds_left(0.5) == pytest.approx(10 * 2 - 1), "half of the first round took a second"
    now = 62.0
    pace.count(1)
    assert pace.seconds_left(0.0) == pytest.approx(9 * 2)
    now = 63.0
    pace.count(2)
    assert pace.seconds_left(0.0) == pytest.approx(8 * 1)


def test_lines_without_a_terminal_say_what_is_left(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedlit.trainer.progress_bar._SECONDS_BETWEEN_LINES", 0.0)
    out = call(f"fit {TINY.replace('--trainer.enable_progress_bar false', '')}").out
    assert re.findall(r"round (\d)/3 .* s left\n", out) == ["1", "2"]


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_an_engine_counts_its_clients_and_steps(engine: EngineName) -> None:
    trainer = run(
        FedAvg(tiny_net(), batch_size=4, local_epochs=2), rounds=2, clients_per_round=4, engine=engine, compiled=False
    )
    progress, steps = trainer.loop.progress, sum(-(-size // 4) * 2 for size in trainer.loop.data.sizes.tolist())
    assert (progress.clients, progress.of_clients, progress.steps, progress.of_steps) == (
        len(SIZES),
        len(SIZES),
        steps,
        steps,
    )
    assert progress.share == 1
    assert progress.steps_per_second is not None
    assert progress.steps_per_second > 0


@pytest.mark.parametrize(("rounds", "title"), [(1, "after 1 round"), (20, "after 20 rounds")])
def test_the_table_at_the_end_counts_rounds(rounds: int, title: str) -> None:
    assert result_table({"rounds": rounds, "final": {}}).title == title
