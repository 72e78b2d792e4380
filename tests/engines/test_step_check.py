"""What a step may do, and what is said when it does something else: the same in both engines."""

from typing import Any

import pytest
import torch
from torch import Tensor

from fedlit import Client, FedAvg, FedBC
from fedlit.client.local_optimizers import LocalSGD
from fedlit.client.states import RECEIVED, ZEROS
from fedlit.engines.base import row_weights
from fedlit.errors import ConfigError
from fedlit.params import Params
from tests.problems import kept_rows, largest_difference, run, tiny_data, tiny_net, weights_of

LOCAL: dict[str, Any] = {"lr": 0.05, "batch_size": 4, "local_epochs": 1}
ENGINES: dict[str, dict[str, Any]] = {
    "sequential": {"engine": "sequential"},
    "one lane": {"engine": "vectorized", "compiled": False, "lanes": 1},
    "two lanes": {"engine": "vectorized", "compiled": False, "lanes": 2},
}
engines = pytest.mark.parametrize("engine", ENGINES)


class WritesReceived(FedAvg):
    def training_step(self, batch, batch_idx):
        with torch.no_grad():
            for value in self.global_params.values():
                value.add_(0.1)
        return self.task_loss(batch) + self.distance_to_global()


class WritesKept(FedAvg):
    def state_spec(self):
        return {"personal": RECEIVED}

    def training_step(self, batch, batch_idx):
        self.kept("personal")["linear.bias"].mul_(0.5)
        return self.task_loss(batch)


class WritesSent(FedAvg):
    def sent_spec(self):
        return {"server_control": ZEROS}

    def training_step(self, batch, batch_idx):
        self.sent("server_control")["linear.bias"].zero_()
        return self.task_loss(batch)


class WritesNumber(FedBC):
    def training_step(self, batch, batch_idx):
        self.dual += 1
        return super().training_step(batch, batch_idx)


class ReplacesNumber(FedBC):
    def training_step(self, batch, batch_idx):
        self.dual = self.dual + 1
        return super().training_step(batch, batch_idx)


@engines
@pytest.mark.parametrize("cls", [WritesReceived, WritesKept, WritesSent, WritesNumber, ReplacesNumber])
def test_what_a_step_is_given_is_read_only(cls: type[Client], engine: str) -> None:
    with pytest.raises(ConfigError, match=rf"{cls.__name__}\.training_step changes .* may only read the received mod"):
        run(cls(tiny_net(), **LOCAL), **ENGINES[engine])


def test_what_was_changed_is_named_before_the_first_round() -> None:
    said = r"changes 'global_params\.linear\.weight'.* while WritesReceived\.training_step was tried on 4 rows"
    with pytest.raises(ConfigError, match=said):
        run(WritesReceived(tiny_net(), **LOCAL))


def test_step_traced_for_compiling_is_refused_too() -> None:
    with pytest.raises(ConfigError, match="may only read the received model"):
        run(WritesReceived(tiny_net(), **LOCAL), engine="vectorized", compiled=True)


class ReadsStates(FedAvg):
    def training_step(self, batch, batch_idx):
        return self.task_loss(batch) + len(self.trainer.loop.states.touched)


class ReadsEpoch(FedAvg):
    def training_step(self, batch, batch_idx):
        return self.task_loss(batch) * 0.9**self.current_epoch


@engines
@pytest.mark.parametrize("cls", [ReadsStates, ReadsEpoch])
def test_step_cannot_reach_the_trainer(cls: type[Client], engine: str) -> None:
    with pytest.raises(ConfigError, match=r"self\.trainer .* inside a local step.*sent_spec"):
        run(cls(tiny_net(), **LOCAL), **ENGINES[engine])


def test_outside_of_steps_a_client_has_its_trainer() -> None:
    client = FedAvg(tiny_net(), **LOCAL)
    with pytest.raises(RuntimeError, match="not attached"):
        client.trainer  # noqa: B018  # reading it is the point
    assert run(client) is client.trainer


class Fails(FedAvg):
    """Fails in the third step, which small clients do not reach."""

    def training_step(self, batch, batch_idx):
        if int(batch_idx) == 2:
            raise ValueError("a mistake of the user")
        return self.task_loss(batch)


def test_error_in_a_step_names_round_client_and_step_and_keeps_its_type() -> None:
    with pytest.raises(ValueError, match="a mistake of the user") as failed:
        run(Fails(tiny_net(), **LOCAL), tiny_data((7, 23)), clients_per_round=2)
    assert failed.value.__notes__ == ["This happened in round 1, client 1, local step 3 (training_step)."]


def test_error_in_the_vectorized_engine_names_round_and_clients() -> None:
    with pytest.raises(ValueError, match="a mistake of the user") as failed:
        run(Fails(tiny_net(), **LOCAL), tiny_data((23, 7, 7)), engine="vectorized", compiled=False, lanes=1, workers=1)
    assert failed.value.__notes__ == ["This happened in round 1, training_step of client 0."]


class FailsOnceTried(FedAvg):
    """Fails once it was tried: on real rows, to count, twice with padding, and for two clients."""

    calls = 0

    def training_step(self, batch, batch_idx):
        self.calls += 1
        if self.calls > 5:
            raise ValueError("a mistake of the user")
        return self.task_loss(batch)


def test_error_of_several_lanes_names_their_clients() -> None:
    with pytest.raises(ValueError, match="a mistake of the user") as failed:
        run(FailsOnceTried(tiny_net(), **LOCAL), clients_per_round=4, **ENGINES["two lanes"])
    assert failed.value.__notes__ == ["This happened in round 1, training_step of one of the clients 1, 3."]


def test_error_while_a_step_is_traced_says_so() -> None:
    with pytest.raises(ValueError, match="a mistake of the user") as failed:
        run(FailsOnceTried(tiny_net(), **LOCAL), engine="vectorized", compiled=True, lanes=1)
    assert failed.value.__notes__ == [
        "This happened in round 1, training_step, while it was traced and compiled for all clients."
    ]


def test_net_holds_the_servers_model_again_when_a_step_has_failed() -> None:
    client = Fails(tiny_net(), **LOCAL)
    before = {name: value.detach().clone() for name, value in client.net.named_parameters()}
    with pytest.raises(ValueError, match="a mistake"):
        run(client)
    assert all(torch.equal(value, before[name]) for name, value in client.local_params.items())


class CountedSGD(LocalSGD):
    """Momentum, the number of steps, and the norm of the start: shapes that only one client at a time can give."""

    def init(self, params: Params) -> Params:
        size = sum(value.square().sum() for value in params.values()).sqrt()
        assert [value.dim() for value in params.values()] == [2, 1]
        return super().init(params) | {"steps": torch.zeros(()), "start": size}

    def step(self, params: Params, grads: Params, state: Params, lr: float | Tensor) -> tuple[Params, Params]:
        assert [value.dim() for value in params.values()] == [2, 1]
        moved, velocity = super().step(params, grads, state, lr / (1 + state["steps"] + state["start"]))
        return moved, velocity | {"steps": state["steps"] + 1, "start": state["start"]}


class Counted(FedAvg):
    def local_optimizer(self) -> LocalSGD:
        return CountedSGD(momentum=0.5)


@pytest.mark.parametrize("keeps", [False, True])
def test_local_optimiser_sees_one_client_in_init_and_in_step(keeps: bool) -> None:
    slow, *fast = (run(Counted(tiny_net(), keep_optimizer=keeps, **LOCAL), **options) for options in ENGINES.values())
    for other in fast:
        assert largest_difference(weights_of(slow), weights_of(other)) <= 1e-10
        assert largest_difference(kept_rows(slow), kept_rows(other)) <= 1e-10
    assert ("memory.steps" in kept_rows(slow)) == keeps


@pytest.mark.parametrize("options", [{"local_epochs": 2}, {"local_steps": 3}, {"drop_last": True}], ids=str)
def test_batch_larger_than_every_client_trains_the_same_in_both_engines(options: dict[str, Any]) -> None:
    slow, *fast = (
        run(FedAvg(tiny_net(), lr=0.05, batch_size=10**6, **options), **engine) for engine in ENGINES.values()
    )
    whole = run(FedAvg(tiny_net(), lr=0.05, batch_size=18, **options))
    assert largest_difference(weights_of(slow), weights_of(whole)) == 0
    for other in fast:
        assert largest_difference(weights_of(slow), weights_of(other)) <= 1e-10
        assert largest_difference(kept_rows(slow), kept_rows(other)) <= 1e-10


def test_weights_of_a_batch_are_shares_of_its_real_rows() -> None:
    weights = row_weights(torch.tensor([1, 3, 4]).numpy(), 4)
    assert weights.tolist() == [[1, 0, 0, 0], [1 / 3, 1 / 3, 1 / 3, 0], [0.25, 0.25, 0.25, 0.25]]
