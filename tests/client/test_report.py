"""Where states live, and what clients report besides x_i."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedlit import INITIAL, ZEROS, Client, Phase, Scaffold, ServerCallback, TrainedCohort, at_both, at_server
from fedlit.client.specs import StateSpec
from fedlit.errors import ConfigError
from tests.client.test_sent import EIGHT, LOCAL, SERVERS, fitted
from tests.problems import kept_rows, run, tiny_data, tiny_net, weights_of


class Hears(ServerCallback):
    """Notes what was reported."""

    def __init__(self) -> None:
        self.heard: dict[int, float] = {}
        self.models: list[dict[str, Tensor]] = []

    def on_cohort_trained(self, trainer: Any, client: Client, cohort: TrainedCohort) -> None:
        self.heard |= dict(zip(cohort.clients, cohort.reported_rows["told"].tolist(), strict=True))
        self.models.append(cohort.reported_model("move"))


class Tells(Client):
    """Reports its id's size and its move."""

    def __init__(self, *args: Any, idle: int | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self.idle = idle

    def report_spec(self) -> StateSpec:
        return {"told": -1.0, "move": ZEROS}

    def on_phase_end(self, cohort: TrainedCohort, phase: Phase) -> None:
        cohort.reported_rows = {"told": cohort.sizes.double()} | {f"move.{k}": v for k, v in cohort.moves.items()}

    def local_work(self, cohort: Any, planned: Any, generator_of: Any) -> Any:
        idle = [steps * (who != self.idle) for who, steps in zip(cohort.clients, planned, strict=True)]
        return np.array(idle)


@pytest.mark.parametrize("servers", SERVERS)
def test_server_hears_what_each_client_reports(servers: str) -> None:
    hears = Hears()
    trainer = fitted(hears, Tells(tiny_net(), **LOCAL), **SERVERS[servers])
    sizes = trainer.loop.data.sizes.tolist()
    heard = {who: told for server in trainer.loop.federation.servers for who, told in server.callbacks[0].heard.items()}
    assert heard
    assert heard == {who: sizes[who] for who in heard}


def test_client_without_a_step_reports_the_first_values() -> None:
    hears = Hears()
    run(Tells(tiny_net(), idle=1, **LOCAL), tiny_data(EIGHT), callbacks=[hears], rounds=1, clients_per_round=8)
    assert hears.heard[1] == -1
    assert all(told > 0 for who, told in hears.heard.items() if who != 1)
    [move] = hears.models
    assert all(float(value[1].abs().max()) == 0 < float(value[0].abs().max()) for value in move.values())


class ReportsNothing(Tells):
    def on_phase_end(self, cohort: TrainedCohort, phase: Phase) -> None: ...


class ReportsMore(Tells):
    def on_phase_end(self, cohort: TrainedCohort, phase: Phase) -> None:
        super().on_phase_end(cohort, phase)
        cohort.reported_rows["more"] = cohort.sizes


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (
            ReportsNothing,
            r"ReportsNothing\.report_spec\(\) declares 'move\.linear\.bias', but on_phase_end does",
        ),
        (ReportsMore, r"ReportsMore\.on_phase_end fills cohort\.reported_rows\['more'\], but report_spec\(\) does not"),
    ],
)
def test_report_that_is_not_as_declared_is_refused(kind: type[Client], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        run(kind(tiny_net(), **LOCAL))


class Declares(Client):
    """Declares anything."""

    def __init__(self, *args: Any, kept: Any, reported: Any, carried: tuple[str, ...] = (), **options: Any) -> None:
        super().__init__(*args, **options)
        self._kept, self._reported, self._carried = kept, reported, carried

    def state_spec(self) -> StateSpec:
        return dict(self._kept)

    def sent_spec(self) -> StateSpec:
        return {"down": 1.0}

    def report_spec(self) -> StateSpec:
        return dict(self._reported)

    def carried_states(self) -> tuple[str, ...]:
        return self._carried


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ({"kept": {"mood": at_both(INITIAL)}, "reported": {}}, r"'mood' with at_both\(\), which is for 'local'"),
        (
            {"kept": {"mood": at_server(0.0)}, "reported": {}, "carried": ("mood",)},
            r"'mood' with at_server\(\), but its local training changes it",
        ),
        ({"kept": {}, "reported": {"down": 0.0}}, r"'down', but sent_spec\(\) does, too"),
        ({"kept": {"mood": at_server(0.0)}, "reported": {"mood": 0.0}}, "'mood', but that state lives at the server"),
        ({"kept": {}, "reported": {"up": INITIAL}}, "'up', but starts it as"),
        ({"kept": {}, "reported": {"u.p": 1.0}}, "'u.p', but a name has no dots"),
    ],
)
def test_declarations_that_contradict_each_other_are_refused(declared: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        run(Declares(tiny_net(), **declared, **LOCAL))


def test_scaffold_neither_moves_nor_reports_what_stays_with_the_client() -> None:
    trainer = run(Scaffold(tiny_net(), keep_local="linear.bias", **LOCAL))
    [control] = [callback.control for callback in trainer.loop.server.callbacks]
    assert list(control) == ["linear.weight"]
    rows = kept_rows(trainer)
    assert not rows["control.linear.bias"].any()
    assert rows["control.linear.weight"].any()
    assert torch.isfinite(weights_of(trainer)["linear.weight"]).all()
