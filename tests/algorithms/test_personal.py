"""Which model is personal, and how it is adapted: measured by hand beside the run's own numbers."""

from functools import partial
from typing import Any, Literal

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad
from torch.nn.functional import cross_entropy

from fedlit import (
    Centralized,
    Client,
    Ditto,
    FedAvg,
    FedBC,
    FedBCD,
    FedDyn,
    FederatedTrainer,
    PerFedAvg,
    PerFedBC,
    PFedMe,
    Softmax,
)
from fedlit.errors import ConfigError
from tests.problems import largest_difference, run, tiny_data, tiny_net, weights_of

BATCH = 4
LOCAL: dict[str, Any] = {"lr": 0.1, "batch_size": BATCH, "local_epochs": 2}


def accuracy_by_hand(trainer: FederatedTrainer, model_of: Any) -> float:
    """Mean over users of the accuracy of `model_of(user)` on the user's own test."""
    data, net = trainer.loop.data, trainer.loop.client.net
    accuracies = []
    for user, rows in enumerate(data.everyone.test):
        x, y = data.rows(data.store, rows)
        output = functional_call(net, model_of(user), (x,))
        accuracies.append(float((output.argmax(1) == y).double().mean()))
    return sum(accuracies) / len(accuracies)


def one_step(trainer: FederatedTrainer, model: dict[str, Tensor], rows: Tensor, lr: float) -> dict[str, Tensor]:
    """Plain SGD on the first batch of these rows."""
    data, net = trainer.loop.data, trainer.loop.client.net
    x, y = data.rows(data.store, rows[:BATCH])
    slope = grad(lambda at: cross_entropy(functional_call(net, at, (x,)), y))(model)
    return {name: value - lr * slope[name] for name, value in model.items()}


def last(trainer: FederatedTrainer, name: str) -> float:
    value: float = trainer.loop.history.rows[-1][name]
    return value


@pytest.mark.parametrize("algorithm", [PFedMe, Ditto])
def test_the_personal_model_is_the_kept_one(algorithm: type[Client]) -> None:
    trainer = run(algorithm(tiny_net(), **LOCAL), rounds=3)
    states = trainer.loop.states

    def kept(user: int) -> dict[str, Tensor]:
        return {name: states.row(f"personal.{name}", user) for name in ("linear.weight", "linear.bias")}

    assert len(states.touched) == 4, "all clients must have trained for this comparison"
    assert last(trainer, "personal/acc") == pytest.approx(accuracy_by_hand(trainer, kept), abs=1e-12)
    assert trainer.summary["personal"] == "the state 'personal'"


@pytest.mark.parametrize("adapt_on", ["train", "test"])
@pytest.mark.parametrize("algorithm", [PerFedAvg, PerFedBC])
def test_the_personal_model_is_the_servers_after_one_step(
    algorithm: type[Client], adapt_on: Literal["train", "test"]
) -> None:
    trainer = run(algorithm(tiny_net(), adapt_lr=2.0, adapt_on=adapt_on, **LOCAL), rounds=2)
    z = {name: value.detach() for name, value in trainer.loop.client.net.named_parameters()}
    rows = getattr(trainer.loop.data.everyone, adapt_on)
    by_hand = accuracy_by_hand(trainer, lambda user: one_step(trainer, z, rows[user], 2.0))
    assert last(trainer, "personal/acc") == pytest.approx(by_hand, abs=1e-12)
    assert trainer.summary["personal"] == f"z after one step of rate 2 on {adapt_on} data"


def test_fedbc_can_be_fine_tuned() -> None:
    trainer = run(FedBC(tiny_net(), **LOCAL), rounds=4, finetune_lr=1.5, finetune_on="test")
    local, tests = trainer.loop.round_evaluator.models.local, trainer.loop.data.everyone.test
    assert len(trainer.loop.states.touched) == 4
    by_hand = accuracy_by_hand(trainer, lambda user: one_step(trainer, local(user), tests[user], 1.5))
    assert last(trainer, "finetuned/acc") == pytest.approx(by_hand, abs=1e-12)
    assert last(trainer, "personal/acc") == last(trainer, "local/acc")
    assert last(trainer, "local/acc") == pytest.approx(accuracy_by_hand(trainer, local), abs=1e-12)
    assert trainer.summary["finetuned"] == "one step of rate 1.5 on test data"


def test_fine_tuning_comes_after_the_algorithms_own_adaptation() -> None:
    trainer = run(PerFedAvg(tiny_net(), adapt_lr=2.0, **LOCAL), rounds=2, finetune_lr=1.5)
    z = {name: value.detach() for name, value in trainer.loop.client.net.named_parameters()}
    rows = trainer.loop.data.everyone.train

    def twice(user: int) -> dict[str, Tensor]:
        return one_step(trainer, one_step(trainer, z, rows[user], 2.0), rows[user], 1.5)

    assert last(trainer, "finetuned/acc") == pytest.approx(accuracy_by_hand(trainer, twice), abs=1e-12)


def test_evaluation_leaves_the_server_model_alone() -> None:
    plain, adapted = (run(FedBC(tiny_net(), **LOCAL), finetune_lr=rate) for rate in (None, 0.5))
    assert plain.loop.client.net.linear.weight.equal(adapted.loop.client.net.linear.weight)


def test_adapting_on_data_that_nobody_has_is_refused() -> None:
    with pytest.raises(ConfigError, match="model.adapt_on is 'adapt', but no client has adaptation data"):
        run(PerFedAvg(tiny_net(), adapt_on="adapt", **LOCAL))
    with pytest.raises(ConfigError, match="trainer.finetune_on is 'adapt', but no client has adaptation data"):
        run(FedAvg(tiny_net(), **LOCAL), finetune_lr=0.1, finetune_on="adapt")


def test_what_stays_with_the_users_makes_the_global_model_none_of_a_whole() -> None:
    trainer = run(FedAvg(tiny_net(), keep_local="all", **LOCAL), rounds=4)
    row = trainer.loop.history.rows[-1]
    assert "global/acc" not in row
    assert row["personal/acc"] == pytest.approx(row["local/acc"])
    assert run(FedAvg(tiny_net(), keep_local="all", average_kept=True, **LOCAL)).loop.history.rows[-1]["global/acc"] > 0


def test_centralised_training_is_plain_training_on_all_data() -> None:
    data = tiny_data()
    trainer = run(Centralized(tiny_net(), lr=0.1, batch_size=1000, local_steps=3), data, rounds=2)
    net = tiny_net()
    rows = data.everyone.train.joined
    x, y = data.rows(data.store, rows)
    for _ in range(6):
        net.zero_grad()
        cross_entropy(net(x), y).backward()
        with torch.no_grad():
            for parameter in net.parameters():
                parameter -= 0.1 * parameter.grad  # type: ignore[operator]  # backward has filled it
    assert torch.allclose(trainer.loop.client.net.linear.weight, net.linear.weight, atol=1e-12)
    assert last(trainer, "personal/acc") == last(trainer, "global/user_acc")


def test_a_net_that_has_nothing_to_keep_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="model.keep_local is 'head', but the net has no such tensors"):
        FedAvg(Softmax(5, 3), keep_local="head")


def test_fedbc_with_a_kept_head_measures_the_servers_model_with_the_users_own() -> None:
    trainer = run(FedBC(tiny_net(), keep_local="linear.bias", **LOCAL), rounds=4)
    assert len(trainer.loop.states.touched) == 4
    by_hand = accuracy_by_hand(trainer, trainer.loop.round_evaluator.models.personal)
    assert trainer.summary["personal"] == "z"
    assert last(trainer, "personal/acc") == pytest.approx(by_hand, abs=1e-12)


def test_the_mean_of_all_models_is_measured_also_where_local_models_are_not_stored() -> None:
    stored, not_stored = (
        run(FedDyn(tiny_net(), alpha=0.5, eval_model="all_mean", **LOCAL), rounds=3, store_local_models=keep)
        for keep in (True, False)
    )
    assert last(stored, "global/loss") == last(not_stored, "global/loss")
    server = run(FedDyn(tiny_net(), alpha=0.5, **LOCAL), rounds=3)
    assert last(server, "global/loss") != last(stored, "global/loss")


def test_epochs_and_steps_together_are_refused_by_fedbcd() -> None:
    with pytest.raises(ConfigError, match="model.local_unit is 'epoch'"):
        FedBCD(tiny_net(), local_unit="epoch", local_steps=3)


@pytest.mark.parametrize(
    "make", [partial(FedBCD, batch_size=BATCH), partial(FedBC, start_from="local", **LOCAL)], ids=["FedBCD", "FedBC"]
)
def test_the_personal_model_of_a_user_who_never_trained_is_z_where_x_starts_at_the_initial_model(make: Any) -> None:
    trainer = run(make(tiny_net()), rounds=1, clients_per_round=1)
    stranger = next(user for user in range(4) if not trainer.loop.states.has(user))
    personal = trainer.loop.round_evaluator.models.personal(stranger)
    assert largest_difference(personal, weights_of(trainer)) == 0
    assert largest_difference(personal, tiny_net().state_dict()) > 1e-3


def test_ditto_does_not_take_adams_rate_for_its_personal_sgd() -> None:
    with pytest.raises(
        ConfigError, match=r"optimizer is adam, .* plain SGD's, and model.lr \(0.001\) is not a rate for them"
    ):
        Ditto(tiny_net(), optimizer="adam", lr=0.001)
    assert Ditto(tiny_net(), optimizer="adam", lr=0.001, personal_lr=0.1).personal_lr == 0.1
