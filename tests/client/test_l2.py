"""Laws of `l2`: a term l2/2 |x|² inside f_i is seen wherever f_i is, and by nothing that is measured on test data."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedlit import FedAvg, Scaffold, ServerCallback
from fedlit.client.base import Client
from fedlit.client.cohort import Cohort, WeighedCohort
from fedlit.errors import ConfigError
from tests.problems import largest_difference, run, tiny_data, tiny_net, weights_of

LOCAL: dict[str, Any] = {"lr": 0.05, "batch_size": 4, "local_epochs": 2}
L2 = 0.3


class Watch(ServerCallback):
    """Notes what the loop measured before training."""

    needs = frozenset({"risk_received", "risk_trained", "grad_received"})

    def __init__(self) -> None:
        self.cohorts: list[Cohort] = []

    def on_server_step_end(self, trainer: Any, client: Client, cohort: WeighedCohort) -> None:
        self.cohorts.append(cohort)


def watched(**options: Any) -> tuple[Cohort, Any]:
    """The first cohort of a run."""
    watch = Watch()
    trainer = run(FedAvg(tiny_net(), **LOCAL, **options), rounds=1, callbacks=[watch])
    return watch.cohorts[0], trainer


def objective(cohort: Cohort, k: int, net: torch.nn.Module) -> Tensor:
    """f_i by hand."""
    data = tiny_data()
    data.setup()
    x, y = data.rows(data.store, data.everyone.train[cohort.clients[k]])
    return cross_entropy(net(x), y) + L2 / 2 * sum(p.square().sum() for p in net.parameters())


def test_for_plain_sgd_it_is_weight_decay() -> None:
    inside, outside = (run(FedAvg(tiny_net(), **LOCAL, **how)) for how in ({"l2": L2}, {"weight_decay": L2}))
    assert largest_difference(weights_of(inside), weights_of(outside)) <= 1e-14
    assert largest_difference(weights_of(inside), weights_of(run(FedAvg(tiny_net(), **LOCAL)))) > 1e-3


def test_with_clipping_it_is_not_weight_decay() -> None:
    inside, outside = (
        run(FedAvg(tiny_net(), clip=0.1, **LOCAL, **how)) for how in ({"l2": 2.0}, {"weight_decay": 2.0})
    )
    assert largest_difference(weights_of(inside), weights_of(outside)) > 1e-3


def test_risks_and_gradients_of_a_round_are_those_of_the_regularised_loss() -> None:
    cohort, _ = watched(l2=L2)
    for k in range(len(cohort.clients)):
        net = tiny_net()
        loss = objective(cohort, k, net)
        loss.backward()
        assert float(cohort.risk_received[k]) == pytest.approx(loss.item(), abs=1e-12)
        for name, value in net.named_parameters():
            torch.testing.assert_close(cohort.grad_received[name][k], value.grad, rtol=0, atol=1e-12)
        net.load_state_dict({name: value[k] for name, value in cohort.params.items()})
        assert float(cohort.risk_trained[k]) == pytest.approx(objective(cohort, k, net).item(), abs=1e-12)


def test_training_losses_have_the_term_and_test_losses_do_not() -> None:
    asked = ("global/train_loss", "global/train_loss_uniform")
    plain, regularised = (
        run(FedAvg(tiny_net(), **LOCAL, l2=l2), rounds=1, extra_metrics=asked).loop.history.rows[0] for l2 in (0.0, L2)
    )
    term = L2 / 2 * sum(float(p.detach().square().sum()) for p in tiny_net().parameters())
    for name in asked:
        assert regularised[name] - plain[name] == pytest.approx(term, abs=1e-12)
    assert regularised["global/loss"] == plain["global/loss"]


def test_the_task_loss_of_a_step_has_the_term() -> None:
    one_step = {"lr": 1e-12, "batch_size": 64, "local_epochs": 1}
    plain, regularised = (
        run(FedAvg(tiny_net(), **one_step, l2=l2), rounds=1).loop.history.rows[1]["train/loss"] for l2 in (0.0, L2)
    )
    term = L2 / 2 * sum(float(p.detach().square().sum()) for p in tiny_net().parameters())
    assert regularised - plain == pytest.approx(term, abs=1e-9)


def test_one_step_of_scaffolds_option_one_makes_the_control_the_regularised_gradient() -> None:
    trainer = run(Scaffold(tiny_net(), option="I", l2=L2, **LOCAL), rounds=1)
    cohort, _ = watched(l2=L2)
    for k, user in enumerate(cohort.clients):
        row = trainer.loop.states.row("control.linear.weight", user)
        torch.testing.assert_close(row, cohort.grad_received["linear.weight"][k], rtol=0, atol=1e-12)


def test_a_negative_strength_is_refused() -> None:
    with pytest.raises(ConfigError, match="model.l2 is -1"):
        FedAvg(tiny_net(), l2=-1.0)
