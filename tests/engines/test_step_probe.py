"""A step that reads padding is found before the first round, and no honest one is."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlit import CharLSTM, Client, FedAvg, FedBC, FederatedTrainer, TensorData
from fedlit.client.states import ZEROS
from fedlit.client.step import Phase
from fedlit.engines.step_probe import reads_padding
from fedlit.errors import ConfigError
from fedlit.experiments.conformance.entries import ENTRIES
from fedlit.params import clone
from tests.problems import CLASSES, FEATURES, TinyConv, largest_difference, run, tiny_data, tiny_net, weights_of

LOCAL: dict[str, Any] = {"lr": 0.05, "batch_size": 4, "local_epochs": 1}
SAMPLE = torch.linspace(-1, 2, FEATURES, dtype=torch.float64)


class Natural(FedAvg):
    """The step that everybody writes first."""

    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self.net(batch.x), batch.y)


class InSecondPhase(FedAvg):
    """An honest first phase; the second counts padding."""

    def phases(self):
        return [Phase(), Phase("again", start="trained", step_method="again_step")]

    def again_step(self, batch, batch_idx):
        return self.sample_losses(batch).mean()


class InItsLogOnly(FedAvg):
    """The gradient is right; what is logged counts padding."""

    def training_step(self, batch, batch_idx):
        return {"loss": self.task_loss(batch), "task": self.sample_losses(batch).mean()}


class InCarriedState(FedAvg):
    """A state that moves with the rows of the batch, padding among them."""

    def state_spec(self):
        return {"seen": 0.0}

    def carried_states(self):
        return ("seen",)

    def training_step(self, batch, batch_idx):
        return {"loss": self.task_loss(batch), "seen": self.seen + batch.x.mean()}


class InLaterBatch(FedAvg):
    """The last of three batches."""

    batches_per_step = 3

    def training_step(self, batch, batch_idx):
        return self.task_loss(batch[0]) + self.sample_losses(batch[2]).sum()


class BehindAState(FedAvg):
    """The term that counts padding has the factor 0 in the first round."""

    def state_spec(self):
        return {"share": 0.0}

    def training_step(self, batch, batch_idx):
        return self.task_loss(batch) + self.share * self.sample_losses(batch).mean()


class BehindWhatIsSent(FedAvg):
    """The same behind a model that the server sends, which starts at zero."""

    def sent_spec(self):
        return {"server_control": ZEROS}

    def training_step(self, batch, batch_idx):
        size = sum(value.sum() for value in self.sent("server_control").values())
        return self.task_loss(batch) + size * self.sample_losses(batch).mean()


WRONG: dict[str, tuple[type[Client], str]] = {
    cls.__name__: (cls, "again_step" if cls is InSecondPhase else "training_step")
    for cls in (Natural, InSecondPhase, InItsLogOnly, InCarriedState, InLaterBatch, BehindAState, BehindWhatIsSent)
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", WRONG)
def test_step_that_reads_padding_is_found(name: str, dtype: torch.dtype) -> None:
    cls, method = WRONG[name]
    assert reads_padding(cls(tiny_net().to(dtype), **LOCAL), SAMPLE.to(dtype)) == method


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", [name for name in ENTRIES if "ν" not in name])
def test_no_algorithm_of_fedlit_reads_padding(name: str, dtype: torch.dtype) -> None:
    client = ENTRIES[name].make(tiny_net().to(dtype), **LOCAL)
    assert reads_padding(client, SAMPLE.to(dtype)) is None


NETS: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "lstm": (lambda: CharLSTM(11, embedding=3, hidden=5), torch.tensor([3, 1, 4, 1, 5, 10])),
    "convolution": (TinyConv, torch.rand(1, 8, 8, generator=torch.Generator().manual_seed(1))),
}


@pytest.mark.parametrize("net", NETS)
def test_nets_of_other_kinds_are_tried_too(net: str) -> None:
    make, sample = NETS[net]
    assert reads_padding(FedAvg(make(), **LOCAL), sample) is None
    assert reads_padding(Natural(make(), **LOCAL), sample) == "training_step"


def test_nets_that_get_no_padding_are_not_tried() -> None:
    net = nn.Sequential(nn.Linear(FEATURES, CLASSES), nn.BatchNorm1d(CLASSES))
    assert reads_padding(Natural(net, **LOCAL), SAMPLE.float()) is None
    assert reads_padding(Natural(tiny_net(), **(LOCAL | {"batch_size": 1})), SAMPLE) is None


def test_trying_a_step_moves_nothing() -> None:
    client = FedBC(tiny_net().eval(), **LOCAL)
    client.prepare()
    before, draws = clone(dict(client.named_buffers()) | dict(client.named_parameters())), torch.get_rng_state()
    reads_padding(client, SAMPLE)
    after = dict(client.named_buffers()) | dict(client.named_parameters())
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert all(value.grad is None for value in client.parameters())
    assert torch.equal(torch.get_rng_state(), draws)
    assert not client.net.training


def test_vectorized_engine_refuses_such_a_step_with_the_words_that_help() -> None:
    with pytest.raises(ConfigError, match=r"Natural\.training_step reads the padding.*row_weights.*task_loss"):
        run(Natural(tiny_net(), **LOCAL), engine="vectorized", compiled=False)


def test_auto_trains_such_a_step_one_by_one_and_says_why() -> None:
    """`compiled` asks for the form that pays only in long runs, which `auto` would otherwise take."""
    trainer = run(Natural(tiny_net(), **LOCAL), engine="auto", compiled=True)
    assert trainer.summary["engine"] == "sequential"
    assert "training_step reads padding rows" in trainer.summary["why"]
    assert "task_loss" in trainer.summary["why"]
    assert largest_difference(weights_of(trainer), weights_of(run(FedAvg(tiny_net(), **LOCAL)))) <= 1e-12


def test_clients_whose_batches_are_all_full_are_tried_as_well() -> None:
    """The next data set has a ragged batch: the same step must not be right by luck."""
    data: TensorData = tiny_data((16, 16))
    with pytest.raises(ConfigError, match="reads the padding"):
        FederatedTrainer(rounds=1, clients_per_round=2, engine="vectorized", precision="64-true").fit(
            Natural(tiny_net(), **LOCAL), datamodule=data
        )
