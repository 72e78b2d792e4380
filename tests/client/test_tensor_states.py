"""States, messages and reports that are tensors of a shape of their own; and what a client sums over its own rows."""

from pathlib import Path
from typing import Any

import pytest
import torch
from pyarrow import parquet
from torch import Tensor, nn
from torch.nn.functional import one_hot

from fedlit import Batch, Client, Cohort, Phase, ServerCallback, StateSpec, TrainedCohort, at_server
from fedlit.errors import ConfigError
from fedlit.evaluation import summaries
from fedlit.experiments.conformance.problem import everything, largest_gap
from tests.client.test_sent import EIGHT, LOCAL, SERVERS
from tests.problems import CLASSES, FEATURES, kept_rows, run, tiny_data, tiny_net
from tests.trainer.test_resume import assert_same_bits

ENGINES: dict[str, dict[str, Any]] = {
    "sequential": {"engine": "sequential"},
    "vectorized": {"engine": "vectorized", "compiled": False, "lanes": 2, "workers": 1},
}
engines = pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)


class Tables(Client):
    """Keeps, moves, receives and reports tables of numbers, all of which its steps read."""

    path: Tensor
    target: Tensor
    shift: Tensor
    table: Tensor

    def state_spec(self) -> StateSpec:
        return {
            "path": torch.zeros(2, 3),  # moves with every step
            "table": torch.full((CLASSES, FEATURES), 0.5),  # of the client's own rows
            "target": at_server(torch.ones(CLASSES), sent=True),
            "mood": 0.5,
        }

    def sent_spec(self) -> StateSpec:
        return {"shift": torch.zeros(1, FEATURES)}

    def report_spec(self) -> StateSpec:
        return {"counts": torch.zeros(CLASSES), "table": torch.zeros(1)}

    def carried_states(self) -> tuple[str, ...]:
        return ("path",)

    def training_step(self, batch: Batch, batch_idx: int | Tensor) -> dict[str, Tensor]:
        weight = self.local_params["linear.weight"]
        pull = (self.path.sum() + 1) * ((weight - self.table - self.shift) ** 2).sum() + (
            self.target * weight[:, 0]
        ).sum()
        task = self.task_loss(batch)
        return {"loss": task + 0.01 * pull, "task": task, "path": self.path + 0.1 * self.path.cos() * self.target[0]}

    def summarize(self, batch: Batch) -> dict[str, Tensor]:
        members = one_hot(batch.y, CLASSES).to(batch.row_weights)
        return {"x": members.T @ batch.x, "counts": members.sum(0), "losses": self.sample_losses(batch).sum()}

    def on_phase_end(self, cohort: TrainedCohort, phase: Phase) -> None:
        counts = cohort.summary["counts"]
        cohort.state["table"] = cohort.summary["x"] / counts.clamp(min=1).unsqueeze(2)
        cohort.reported_rows = {"counts": counts}

    def server_callbacks(self) -> list[ServerCallback]:
        return [Tells()]


class Tells(ServerCallback):
    """Sends the mean table, and tells each client its counts in the next round."""

    def __init__(self) -> None:
        self.mean: Tensor | None = None
        self.saw_rows = False

    def on_cohort_start(self, trainer: Any, client: Client, cohort: Cohort) -> None:
        if self.mean is not None:
            cohort.sent["shift"] = self.mean.expand(len(cohort.clients), 1, FEATURES)

    def on_cohort_trained(self, trainer: Any, client: Client, cohort: TrainedCohort) -> None:
        self.mean = cohort.state["table"].mean((0, 1)).unsqueeze(0)
        cohort.state["target"] = cohort.reported_rows["counts"] / cohort.sizes.unsqueeze(1)
        self.saw_rows = "summary" in cohort.filled() or "summary" in cohort.parts

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.mean = state_dict["mean"]


def rows_of(trainer: Any, user: int) -> tuple[Tensor, Tensor]:
    data = trainer.loop.data
    x, y = data.rows(data.store, data.everyone.train[user])
    return x, y


@engines
def test_client_keeps_what_it_computes_of_its_own_rows(engine: dict[str, Any]) -> None:
    trainer = run(Tables(tiny_net(), **LOCAL), **engine)
    states = trainer.loop.states
    assert states.row("path", states.touched[0]).shape == (2, 3)
    for user in states.touched:
        x, y = rows_of(trainer, user)
        means = torch.stack([x[y == k].mean(0) if bool((y == k).any()) else x[0] * 0 for k in range(CLASSES)])
        assert float((states.row("table", user) - means).abs().max()) < 1e-12
        shares = torch.tensor([float((y == k).double().mean()) for k in range(CLASSES)], dtype=torch.float64)
        assert float((states.row("target", user) - shares).abs().max()) < 1e-12
    assert not trainer.loop.server.callbacks[0].saw_rows


@pytest.mark.parametrize("servers", SERVERS)
def test_engines_agree_in_all_tables(servers: str) -> None:
    found = [
        run(Tables(tiny_net(), **LOCAL), tiny_data(EIGHT), **SERVERS[servers], **kind) for kind in ENGINES.values()
    ]
    assert largest_gap(*map(everything, found)) < 1e-12
    for one in found:  # what steps read of the tables must change the models
        assert float(kept_rows(one)["path"].abs().max()) > 0.1


@pytest.mark.slow
def test_compiled_program_agrees() -> None:
    one, other = (run(Tables(tiny_net(), **LOCAL), engine=kind) for kind in ("sequential", "vectorized"))
    assert other.loop.choice is not None
    assert other.loop.choice.compiled
    assert largest_gap(everything(one), everything(other)) < 1e-12


@pytest.mark.parametrize("states", ["memory", "disk"])
def test_run_is_resumed_to_the_same_bits(states: Any, tmp_path: Path) -> None:
    options: dict[str, Any] = {"states": states, "checkpoint_every": 1}
    whole = run(Tables(tiny_net(), **LOCAL), rounds=4)
    run(Tables(tiny_net(), **LOCAL), rounds=2, run=tmp_path, **options)
    resumed = run(Tables(tiny_net(), **LOCAL), rounds=4, run=tmp_path, resume=True, **options)
    assert (resumed.loop.states.file is not None) is (states == "disk")
    resumed.loop.states.keep_in_memory()
    assert_same_bits(kept_rows(whole), kept_rows(resumed))
    columns = parquet.read_table(tmp_path / "clients.parquet").column_names
    assert "mood" in columns
    assert not {"path", "table", "target"} & {*columns}
    assert not [name for name in resumed.loop.history.columns if "path" in name or "table" in name]


def test_what_travels_is_counted() -> None:
    client = Tables(tiny_net(), **LOCAL)
    model = CLASSES * (FEATURES + 1)
    assert client.traffic() == (model + CLASSES + FEATURES, model + 1 + CLASSES + CLASSES * FEATURES)
    row = run(client).loop.history.rows[-1]
    assert row["comm/down_mb"] == pytest.approx(3 * 8 * (model + CLASSES + FEATURES) / 1e6)


def test_pieces_of_a_clients_rows_give_the_same_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = everything(run(Tables(tiny_net(), **LOCAL)))
    monkeypatch.setattr(summaries, "PIECE", 5)
    assert largest_gap(whole, everything(run(Tables(tiny_net(), **LOCAL)))) < 1e-12


class SumsFeatures(Client):
    """Sums outputs of a net with BatchNorm."""

    def report_spec(self) -> StateSpec:
        return {"outputs": torch.zeros(CLASSES)}

    def summarize(self, batch: Batch) -> dict[str, Tensor]:
        return {"outputs": self.net(batch.x).sum(0)}

    def on_phase_end(self, cohort: TrainedCohort, phase: Phase) -> None:
        cohort.reported_rows = dict(cohort.summary)


class Notes(ServerCallback):
    """Notes what was reported, and the models."""

    def __init__(self) -> None:
        self.heard: list[tuple[Tensor, dict[str, Tensor]]] = []
        self.clients: list[int] = []

    def on_cohort_trained(self, trainer: Any, client: Client, cohort: TrainedCohort) -> None:
        models = {k: v.clone() for k, v in (cohort.params | cohort.buffers).items()}
        self.heard.append((cohort.reported_rows["outputs"], models))
        self.clients += cohort.clients


def test_sums_are_taken_in_evaluation_mode_at_the_trained_model() -> None:
    notes, net = (
        Notes(),
        nn.Sequential(nn.Linear(FEATURES, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, CLASSES)),
    )
    trainer = run(SumsFeatures(net.double(), **LOCAL), callbacks=[notes], rounds=1)
    ((outputs, models),) = notes.heard
    for place, user in enumerate(notes.clients):
        x, _ = rows_of(trainer, user)
        own = {name: value[place] for name, value in models.items()}
        expected = torch.func.functional_call(net.eval(), own, (x,)).sum(0).detach()
        assert float((outputs[place] - expected).abs().max()) < 1e-12


# ---- bad input -------------------------------------------------------------------------------------------------------


class Declares(Client):
    """Declares what it is told to."""

    def __init__(self, *args: Any, kept: Any = None, sent: Any = None, reported: Any = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self._kept, self._sent, self._reported = kept, sent, reported

    def state_spec(self) -> StateSpec:
        return {} if self._kept is None else {"table": self._kept}

    def sent_spec(self) -> StateSpec:
        return {} if self._sent is None else {"down": self._sent}

    def report_spec(self) -> StateSpec:
        return {} if self._reported is None else {"up": self._reported}


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        (
            {"kept": [0.0, 1.0]},
            r"state_spec\(\) declares 'table', but its first value is a list.*torch\.zeros\(10, 64\)",
        ),
        (
            {"kept": lambda client: torch.zeros(client)},
            r"'table', but its first value is a function\. All clients begin",
        ),
        ({"kept": None, "sent": "ZEROS"}, r"sent_spec\(\) declares 'down', but its first value is a str"),
        ({"reported": torch.zeros(3, dtype=torch.int64)}, r"report_spec\(\) declares 'up'.*a tensor of type int64"),
        ({"kept": torch.ones(3, dtype=torch.bool)}, r"of type bool\. .*for a mask 0\.0 and 1\.0"),
        ({"kept": torch.tensor(0.5)}, r"a tensor of shape \(\)\. Give a number"),
        ({"kept": at_server(torch.zeros(0, 3))}, r"a tensor of shape \(0, 3\)"),
    ],
)
def test_first_value_that_cannot_be_is_refused(declared: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        run(Declares(tiny_net(), **declared, **LOCAL))


class Fills(Declares):
    """Fills its table and its report with anything."""

    def __init__(self, *args: Any, fill: Any, **options: Any) -> None:
        super().__init__(*args, kept=torch.zeros(2), reported=torch.zeros(2, 4), **options)
        self._fill = fill

    def on_phase_end(self, cohort: TrainedCohort, phase: Phase) -> None:
        count = len(cohort.clients)
        cohort.reported_rows["up"] = torch.zeros(count, 2, 4, dtype=torch.float64)
        self._fill(cohort, count)


def fill_state(value: Any) -> Any:
    return lambda cohort, count: cohort.state.update(table=value(count))


def fill_report(value: Any) -> Any:
    return lambda cohort, count: cohort.reported_rows.update(up=value(count))


@pytest.mark.parametrize(
    ("fill", "said"),
    [
        (
            fill_state(lambda n: torch.zeros(n, 3)),
            r"state\['table'\] is of shape \(3, 3\), but .* declares \(2,\) for each",
        ),
        (fill_state(lambda n: torch.zeros(2)), r"state\['table'\] is of shape \(2,\).*a tensor of shape \(3, 2\)"),
        (fill_state(lambda n: [torch.zeros(k) for k in range(n)]), "is a list.*A shape cannot depend on the client"),
        (fill_report(lambda n: torch.zeros(n, 4, 2)), r"reported_rows\['up'\] is of shape \(3, 4, 2\)"),
        (fill_report(lambda n: 0.0), r"reported_rows\['up'\] is a float"),
        (lambda cohort, n: cohort.state.update(tabel=torch.zeros(n, 2)), r"state\['tabel'\] was filled, but"),
    ],
)
def test_rows_of_another_shape_than_declared_are_refused(fill: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        run(Fills(tiny_net(), fill=fill, **LOCAL))


class FillsLater(ServerCallback):
    """A server's callback that gives a state another shape."""

    def on_cohort_trained(self, trainer: Any, client: Client, cohort: TrainedCohort) -> None:
        cohort.state["table"] = cohort.state["table"][:, :1]


def test_state_that_a_callback_reshapes_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"state\['table'\] is of shape \(3, 1\)"):
        run(Declares(tiny_net(), kept=at_server(torch.zeros(2)), **LOCAL), callbacks=[FillsLater()])


class Sums(Client):
    """Summarises in a way of its own."""

    def __init__(self, *args: Any, how: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._how = how

    def summarize(self, batch: Batch) -> Any:
        return self._how(batch)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (
            lambda batch: {"mean": batch.x.mean(0)},
            r"Sums\.summarize returned 'mean', which is not a sum over the batch",
        ),
        (lambda batch: {"rows": batch.x}, r"Sums\.summarize returned 'rows' of shape .* for other rows"),
        (lambda batch: batch.x.sum(), r"Sums\.summarize must return sums .* returned a Tensor"),
        (lambda batch: {}, r"Sums\.summarize must return sums"),
    ],
)
def test_summary_that_is_not_a_sum_is_refused_before_the_first_round(how: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        run(Sums(tiny_net(), how=how, **LOCAL))


def test_summary_whose_shape_depends_on_the_client_is_refused() -> None:
    def how(batch: Batch) -> dict[str, Tensor]:
        width = 2 if float(batch.x.mean()) > 0.75 else 1  # later clients have larger numbers
        return {"wide": batch.x.new_ones(width) * len(batch.y)}

    with pytest.raises(ConfigError, match=r"returned 'wide' of shape \(\d,\) for client \d, and of shape"):
        run(Sums(tiny_net(), how=how, **LOCAL), rounds=2, clients_per_round=4)


def test_summary_is_for_on_phase_end_alone() -> None:
    class Reads(ServerCallback):
        def on_cohort_trained(self, trainer: Any, client: Client, cohort: TrainedCohort) -> None:
            assert cohort.summary

    with pytest.raises(AttributeError, match="only on_phase_end reads it"):
        run(Tables(tiny_net(), **LOCAL), callbacks=[Reads()])
