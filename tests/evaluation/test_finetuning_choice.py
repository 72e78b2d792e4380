"""Of several fine-tunings validation takes one: which one, what is written, and what is refused."""

from typing import Any

import pytest
import torch

from fedlit import Clock, Cloud, Ditto, FedAvg, FedBC, FederatedTrainer, Latency, PerFedAvg
from fedlit.client.step import Adaptation
from fedlit.errors import ConfigError
from fedlit.server.optimizers import SGD
from fedlit.trainer.summary import result_table
from tests.problems import SIZES, run, tiny_data, tiny_net

LOCAL: dict[str, Any] = {"lr": 0.1, "batch_size": 4, "local_epochs": 1}
RATES, EPOCHS = [0.001, 1e308, 0.5], [1, 4]
CLIENTS = {"FedAvg": FedAvg, "FedBC": FedBC, "Ditto": Ditto, "Per-FedAvg": PerFedAvg}
CLOUD: dict[str, Any] = {
    "clients_per_round": 1,
    "sampler": "earliest",
    "clock": Clock(Latency()),
    "cloud": Cloud(servers=3, first=2),
    "server_optimizer": SGD(lr=0.5),
}


def fitted(name: str, **options: Any) -> FederatedTrainer:
    """Three rounds with validation samples and two newcomers, who are measured in each round."""
    data = tiny_data((*SIZES, 20, 24, 30, 35), val_fraction=0.3, newcomers=0.25)
    return run(CLIENTS[name](tiny_net(), **LOCAL), data, rounds=3, newcomers_every=1, **options)


def validated(trainer: FederatedTrainer, lr: float, epochs: int, *, from_z: bool) -> tuple[float, float]:
    """Accuracy and mean loss of all users' fine-tuned models on their own validation samples, pooled."""
    evaluator = trainer.loop.round_evaluator
    steps = [trainer.loop.client.personal_model().adaptation, Adaptation(lr, epochs=epochs)]
    model_of = evaluator.models.received if from_z else evaluator.models.personal
    right, loss, count = 0.0, 0.0, 0
    for user, rows in enumerate(trainer.loop.data.everyone.val):
        kept = [step for step in steps[from_z:] if step is not None]
        model = evaluator.adapter.adapted(model_of(user), user, kept, trainer.loop.rounds_done)
        x, y = trainer.loop.data.rows(trainer.loop.data.store, rows)
        output = torch.func.functional_call(trainer.loop.client.net, dict(model), (x,))
        right += float((output.argmax(1) == y).sum())
        loss += float(torch.nn.functional.cross_entropy(output, y, reduction="sum"))
        count += len(y)
    return right / count, loss / count


@pytest.mark.parametrize("start", ["personal", "global"])
@pytest.mark.parametrize(("name", "options"), [*((name, {}) for name in CLIENTS), ("FedAvg", CLOUD)])
def test_the_best_on_validation_is_taken_and_measured_as_if_it_were_the_only_one(
    name: str, options: dict[str, Any], start: Any
) -> None:
    trainer = fitted(name, finetune_lr=RATES, finetune_epochs=EPOCHS, finetune_from=start, **options)
    row = trainer.loop.history.rows[-1]
    tried = {
        (lr, epochs): validated(trainer, lr, epochs, from_z=start == "global")
        for lr in (0.001, 0.5)
        for epochs in EPOCHS
    }
    chosen = max(tried, key=lambda one: (tried[one][0], -tried[one][1]))
    assert (row["finetuned/lr"], row["finetuned/epochs"]) == chosen, "1e308 gives no finite loss"
    assert row["finetuned/val_acc"] == pytest.approx(tried[chosen][0], abs=1e-12)
    alone = fitted(name, finetune_lr=chosen[0], finetune_epochs=chosen[1], finetune_from=start, **options)
    measured = [key for key in alone.loop.history.rows[-1] if "finetuned" in key]
    assert "newcomers/finetuned_acc" in measured
    assert [row[key] for key in measured] == [alone.loop.history.rows[-1][key] for key in measured]


def test_the_choice_of_a_round_is_of_that_round_and_stands_in_the_table() -> None:
    trainer = fitted("FedBC", finetune_lr=[0.001, 0.5])
    rows = trainer.loop.history.rows
    assert {row["finetuned/lr"] for row in rows} <= {0.001, 0.5}
    assert "finetuned/epochs" not in rows[-1]
    texts = [str(cell) for cell in result_table(trainer.summary).columns[2].cells]
    assert "finetuned/lr" in texts
    said = "the best on validation of: one step of rate 0.001 on train data; one step of rate 0.5 on train data"
    assert trainer.summary["finetuned"] == said


def test_a_run_that_keeps_no_users_models_has_nothing_to_choose_for() -> None:
    options: dict[str, Any] = {"finetune_lr": [0.1, 0.2], "store_local_models": False}
    with pytest.raises(ConfigError, match="several values, .* this run has no users' models to fine-tune"):
        fitted("FedAvg", **options)
    assert "finetuned/lr" in fitted("FedAvg", finetune_from="global", **options).loop.history.rows[-1]
