"""A number that a user's own algorithm keeps is measured, recorded and shown without another line."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from pyarrow import parquet
from pytorch_lightning import Trainer

from fedlit import Client, FedBC, FederatedTrainer, ServerCallback, ShownState, TrainedCohort
from fedlit.client.states import StateSpec
from fedlit.errors import ConfigError, RunError
from fedlit.metrics.catalogue import STATES, metric
from fedlit.report.dashboard.content import content_of
from fedlit.report.figures.draw import draw_figures
from fedlit.results.records import read_metrics
from fedlit.results.runs import find_runs, group_runs
from tests.problems import run, tiny_net


class Cheer(ServerCallback):
    """A client's mood rises by its number of samples over 100 whenever it takes part."""

    def on_cohort_trained(self, trainer: Trainer, client: Client, cohort: TrainedCohort) -> None:
        for name in client.state_spec():
            cohort.state[name] = cohort.state[name] + cohort.sizes.double() / 100


class Moody(Client):
    """FedAvg whose clients keep one number."""

    def state_spec(self) -> StateSpec:
        return {"mood": 0.5}

    def server_callbacks(self) -> list[ServerCallback]:
        return [Cheer()]


def fit(client: type[Client], folder: Path) -> dict[int, dict[int, float]]:
    """Train; returns what the state of each client should be after each round: round -> client -> number."""
    trainer = run(client(tiny_net(), lr=0.1, batch_size=4), rounds=4, run=str(folder))
    sizes, kept, expected = trainer.loop.data.sizes, {}, {}
    for done in range(4):
        kept |= {one: kept.get(one, 0.5) + float(sizes[one]) / 100 for one in cohort_of(trainer, done)}
        expected[done + 1] = dict(kept)
    return expected


def cohort_of(trainer: FederatedTrainer, done: int) -> list[int]:
    """Who trains after so many rounds."""
    options = trainer.loop.options
    return options.sampler.select(options.seed, done, trainer.loop.data.sizes.numpy(), options.clients_per_round).train


@pytest.fixture(scope="module")
def moody(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[int, dict[int, float]]]:
    folder = tmp_path_factory.mktemp("runs") / "moody"
    return folder, fit(Moody, folder)


def test_its_mean_over_the_cohort_is_a_column_of_metrics_csv(moody: tuple[Path, dict[int, dict[int, float]]]) -> None:
    folder, expected = moody
    rows = {int(row["round"]): row for row in read_metrics(folder / "metrics.csv")}
    assert "state/mood_mean" not in rows[0], "nobody has taken part"
    before: dict[int, float] = {}
    for round, kept in expected.items():
        cohort = [kept[one] for one in kept if kept[one] != before.get(one)]
        assert rows[round]["state/mood_mean"] == pytest.approx(sum(cohort) / len(cohort), abs=1e-12)
        before = kept


def test_every_client_has_its_number_in_clients_parquet(moody: tuple[Path, dict[int, dict[int, float]]]) -> None:
    folder, expected = moody
    table = parquet.read_table(folder / "clients.parquet")
    assert "dual" not in table.column_names
    found = zip(*(table[name].to_pylist() for name in ("round", "client", "mood")), strict=True)
    known = {(round, one): value for round, one, value in found if value == value}
    assert known == pytest.approx({(r, one): value for r, kept in expected.items() for one, value in kept.items()})


@pytest.mark.usefixtures("figures_are_not_drawn")
def test_report_and_dashboard_show_it(moody: tuple[Path, dict[int, dict[int, float]]], tmp_path: Path) -> None:
    runs = find_runs([moody[0]])
    figures = {figure.name: figure for figure in draw_figures(group_runs(runs), tmp_path)}
    assert figures["weight_by_mood"].title == "Coefficient against mood"
    assert figures["mood_by_size"].title == "Mood against the number of samples"
    assert (tmp_path / "mood_by_size_rounds.png").exists()
    index = content_of(runs).index
    assert index["states"] == {"mood": "mood"}
    assert "mood" in index["runs"][0]["users"]["columns"]
    shown = {one["name"]: one["label"] for one in index["metrics"]}
    assert shown["state/mood_mean"] == "mood, mean"


def test_words_of_its_own_are_kept_with_the_run(tmp_path: Path) -> None:
    """A report is made by another process, which does not know the class."""

    class Named(Moody):
        shown_states = {"temper": ShownState("temper τ", {"temper/mean": "mean", "temper/largest": "max"})}

        def state_spec(self) -> StateSpec:
            return {"temper": 0.5}

    fit(Named, tmp_path / "named")
    assert metric("temper/largest").label == "temper τ, largest"
    program = (
        "from pathlib import Path; from fedlit.results.runs import find_runs\n"
        "from fedlit.metrics.catalogue import metric, state_label\n"
        "before = state_label('temper')\n"
        f"find_runs([Path({str(tmp_path)!r})])\n"
        "print(before, '|', state_label('temper'), '|', metric('temper/mean').label)"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert answer.stdout.strip() == "temper | temper τ | temper τ, mean"


def test_a_damaged_summary_is_named(moody: tuple[Path, dict[int, dict[int, float]]], tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("config.yaml", "metrics.csv"):
        (copy / name).write_bytes((moody[0] / name).read_bytes())
    (copy / "summary.json").write_text(json.dumps({"states": {"unheard": {"colour": "red"}}}))
    with pytest.raises(RunError, match="summary.json: its 'states' or 'measures' cannot be read"):
        find_runs([copy])


@pytest.mark.parametrize("name", ["size", "weight", "acc_global", "client"])
def test_a_number_that_would_hide_a_column_is_refused(name: str) -> None:
    class Hiding(Client):
        def state_spec(self) -> StateSpec:
            return {name: 0.0}

    with pytest.raises(ConfigError, match=f"Hiding keeps a number called '{name}'.*another name"):
        run(Hiding(tiny_net()))


@pytest.mark.parametrize("curves", [{"global/acc": "mean"}, {"mine/middle": "median"}])
def test_a_curve_that_cannot_be_drawn_is_refused(curves: Any) -> None:
    with pytest.raises(ConfigError, match="The state 'odd' has the curve"):

        class Odd(Client):
            shown_states = {"odd": ShownState("odd", curves)}

    assert "odd" not in STATES


def test_fedbcs_curves_have_the_names_of_the_design(tmp_path: Path) -> None:
    trainer = run(FedBC(tiny_net(), lr=0.1, batch_size=4, dual_momentum=0.5), run=str(tmp_path / "run"))
    curves = ["dual/mean", "dual/min", "dual/max", "tolerance/mean", "state/dual_velocity_mean"]
    at = trainer.loop.history.columns.index("dual/mean")
    assert trainer.loop.history.columns[at : at + 5] == curves
    last = trainer.loop.history.rows[-1]
    kept = [float(trainer.loop.states.row("dual", one)) for one in cohort_of(trainer, 4)]
    assert (last["dual/min"], last["dual/max"]) == (min(kept), max(kept))
    assert last["dual/mean"] == pytest.approx(float(torch.tensor(kept, dtype=torch.float64).mean()), abs=1e-15)
