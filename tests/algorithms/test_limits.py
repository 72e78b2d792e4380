"""Which setting makes an algorithm another one: to the last bit where both compute the same, else to rounding."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedlit import (
    Client,
    Ditto,
    ExpAlpha,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedBC,
    FedBCD,
    FedBCDI,
    FedDyn,
    FederatedTrainer,
    FedFor,
    FedProx,
    FedYogi,
    FixedSampler,
    PerFedAvg,
    PerFedBC,
    PFedMe,
    QFedAvg,
    Scaffold,
)
from fedlit.server.optimizers import Adaptive
from tests.problems import largest_difference, run, tiny_net, weights_of

RICH: dict[str, Any] = {"lr": 0.05, "batch_size": 4, "local_steps": 4, "momentum": 0.5}
FULL: dict[str, Any] = {"lr": 0.05, "batch_size": 64, "local_epochs": 3}
"""Full batches: the order in which samples are drawn does not matter."""
UNIFORM, ONCE = {"weights": "uniform"}, {"rounds": 1}
Fit = Callable[[], FederatedTrainer]


def fit(
    algorithm: type[Client], local: dict[str, Any] = RICH, trainer: dict[str, Any] | None = None, **options: Any
) -> Fit:
    return lambda: run(algorithm(tiny_net(), **local, **options), **({"rounds": 2} | (trainer or {})))


def z_start() -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in tiny_net().named_parameters()}


def mean_of(trainer: FederatedTrainer, state: str) -> dict[str, Tensor]:
    rows = trainer.loop.states
    return {name: rows.column(f"{state}.{name}").mean(0) for name in weights_of(trainer)}


BITWISE: dict[str, tuple[Fit, Fit]] = {
    "fedbc, duals 0": (fit(FedBC, dual_lr=0.0), fit(FedAvg)),
    "fedbc, duals mu/2": (
        fit(FedBC, dual_lr=0.0, dual_init=0.35, trainer={"weights": "samples"}),
        fit(FedProx, mu=0.7),
    ),
    "fedprox, mu 0": (fit(FedProx, mu=0.0), fit(FedAvg)),
    "qfedavg, q 0": (fit(QFedAvg, q=0.0), fit(FedAvg, trainer=UNIFORM)),
    "qfedavg, q 0, any bound": (fit(QFedAvg, q=0.0, lipschitz=4.0), fit(FedAvg, trainer=UNIFORM)),
    "fedfor, strength 0": (fit(FedFor, strength=0.0), fit(FedAvg)),
    "fedfor hinge, strength 0": (fit(FedFor, strength=0.0, form="hinge"), fit(FedAvg)),
    "fedfor, first round": (fit(FedFor, strength=5.0, trainer=ONCE), fit(FedAvg, trainer=ONCE)),
    "scaffold, first round": (fit(Scaffold, option="I", trainer=ONCE), fit(FedAvg, trainer=ONCE | UNIFORM)),
    "per_fedbc, J 0, duals 0": (fit(PerFedBC, adapt_steps=0, dual_lr=0.0), fit(FedAvg)),
    "per_fedbc, J 1, duals 0": (
        fit(PerFedBC, adapt_lr=0.2, dual_lr=0.0, trainer=UNIFORM),
        fit(PerFedAvg, adapt_lr=0.2, form="fo"),
    ),
    "fedprox, no stragglers": (fit(FedProx, mu=0.7, stragglers=0.0), fit(FedProx, mu=0.7)),
    "fedavgm, momentum 0": (fit(FedAvg, trainer={"server_optimizer": FedAvgM(momentum=0.0)}), fit(FedAvg)),
    "fedavgm, nesterov, momentum 0": (
        fit(FedAvg, trainer={"server_optimizer": FedAvgM(momentum=0.0, nesterov=True)}),
        fit(FedAvg),
    ),
    **{f"ditto, prox {prox:g}": (fit(Ditto, prox=prox), fit(FedAvg)) for prox in (0.0, 1.0, 7.0)},
    "ditto, interleaved": (fit(Ditto, prox=2.0, order="interleaved"), fit(FedAvg)),
    "exp_alpha, hot, no sizes": (
        fit(FedAvg, trainer={"weights": ExpAlpha(1e300, "none")}),
        fit(FedAvg, trainer=UNIFORM),
    ),
}
ROUNDING: dict[str, tuple[Fit, Fit]] = {
    "fedbc, equal duals": (fit(FedBC, dual_lr=0.0, dual_init=0.35), fit(FedProx, mu=0.7, trainer=UNIFORM)),
    "qfedavg by samples, q 0": (fit(QFedAvg, q=0.0, sample_weighted=True), fit(FedAvg)),
    "exp_alpha, hot": (fit(FedAvg, trainer={"weights": ExpAlpha(1e300)}), fit(FedAvg)),
    **{
        f"per_fedavg {form}, adapt_lr 0": (
            fit(PerFedAvg, FULL, adapt_lr=0.0, form=form),
            fit(FedAvg, FULL, trainer=UNIFORM),
        )
        for form in ("exact", "hf", "fo")
    },
}


@pytest.mark.parametrize("name", BITWISE)
def test_at_its_limit_an_algorithm_is_another_to_the_last_bit(name: str) -> None:
    ours, theirs = (weights_of(one()) for one in BITWISE[name])
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


def test_a_limit_holds_to_the_last_bit_in_single_precision_too() -> None:
    frozen = FedBC(tiny_net().float(), dual_lr=0.0, dual_init=0.35, **RICH)
    single: dict[str, Any] = {"rounds": 2, "precision": "32-true"}
    ours = weights_of(run(frozen, weights="samples", **single))
    theirs = weights_of(run(FedProx(tiny_net().float(), mu=0.7, **RICH), **single))
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


@pytest.mark.parametrize("name", ROUNDING)
def test_at_its_limit_an_algorithm_is_another_but_for_rounding(name: str) -> None:
    ours, theirs = (weights_of(one()) for one in ROUNDING[name])
    assert largest_difference(ours, theirs) <= 1e-12


def test_the_first_round_of_feddyn_goes_further_than_fedprox_by_the_share_that_took_part() -> None:
    start, near = z_start(), weights_of(fit(FedProx, mu=0.7, trainer=ONCE | UNIFORM)())
    expected = {name: start[name] + (1 + 3 / 4) * (near[name] - start[name]) for name in start}
    assert largest_difference(weights_of(fit(FedDyn, alpha=0.7, trainer=ONCE)()), expected) <= 1e-12


# server optimisers


@pytest.mark.parametrize("optimizer", [FedAdagrad, FedYogi])
def test_an_adaptive_server_that_hardly_adapts_averages(optimizer: type[Adaptive]) -> None:
    """v starts at tau² and hardly moves: lr / (sqrt(v) + tau) is 1 at lr = 2 tau."""
    still = fit(FedAvg, trainer={"server_optimizer": optimizer(lr=2e5, beta1=0.0, tau=1e5)})
    assert largest_difference(weights_of(still()), weights_of(fit(FedAvg)())) <= 1e-9


def test_the_first_step_of_fedadam_has_no_bias_correction_and_v_starts_at_tau_squared() -> None:
    start, plain = z_start(), weights_of(fit(FedAvg, trainer=ONCE)())
    adam = FedAdam(lr=0.3, beta1=0.9, beta2=0.6, tau=0.02)
    moved = weights_of(fit(FedAvg, trainer=ONCE | {"server_optimizer": adam})())
    for name, before in start.items():
        d = plain[name] - before
        expected = before + 0.3 * 0.1 * d / ((0.6 * 0.02**2 + 0.4 * d**2).sqrt() + 0.02)
        torch.testing.assert_close(moved[name], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("rule", [FedAdam(), FedYogi(), FedAdagrad(beta1=0.9)], ids=lambda rule: type(rule).__name__)
def test_a_round_without_a_move_goes_on_by_the_momentum_alone(rule: Adaptive) -> None:
    z = nn.Parameter(torch.zeros(3, dtype=torch.float64))
    built = rule.build([z])
    z.grad = torch.tensor([1.0, -2.0, 0.0], dtype=torch.float64)
    built.step()
    before, m, v = z.detach().clone(), built.state[z]["m"], built.state[z]["v"]
    z.grad = torch.zeros_like(z)
    built.step()
    kept = v * rule.beta2 if isinstance(rule, FedAdam) else v
    torch.testing.assert_close(z.detach() - before, rule.lr * 0.9 * m / (kept.sqrt() + rule.tau), rtol=1e-12, atol=0)


# personal models


def pfedme(**options: Any) -> FederatedTrainer:
    chosen = {"lr": 0.05, "batch_size": 4, "local_steps": 3, "prox": 4.0, "personal_lr": 0.1} | options
    return run(PFedMe(tiny_net(), **chosen), rounds=1, sampler="all")


def test_beta_of_one_is_the_plain_mean_of_what_pfedmes_clients_send() -> None:
    trainer = pfedme(beta=1.0)
    assert largest_difference(weights_of(trainer), mean_of(trainer, "local")) <= 1e-12


def test_beta_mixes_the_mean_into_the_old_model_and_may_go_beyond_it() -> None:
    start, trainer = z_start(), pfedme(beta=1.6)
    mean = mean_of(trainer, "local")
    assert largest_difference(weights_of(trainer), {k: -0.6 * start[k] + 1.6 * mean[k] for k in start}) <= 1e-12


def test_one_local_round_at_rate_one_over_prox_averages_theta() -> None:
    trainer = pfedme(lr=0.25, local_steps=1)
    assert largest_difference(weights_of(trainer), mean_of(trainer, "personal")) <= 1e-12


def test_a_huge_prox_makes_pfedme_fedavg_with_uniform_weights() -> None:
    steps: dict[str, Any] = {"lr": 0.05, "batch_size": 4, "local_steps": 3}
    plain = run(FedAvg(tiny_net(), **steps), rounds=1, sampler="all", weights="uniform")
    firm = pfedme(prox=1e6, personal_lr=5e-7, inner_steps=40)
    assert largest_difference(weights_of(firm), weights_of(plain)) <= 1e-5


def test_ditto_without_prox_trains_every_user_alone() -> None:
    together = run(Ditto(tiny_net(), prox=0.0, **FULL), rounds=3, sampler="all").loop.states
    for user in range(4):
        alone = weights_of(run(FedAvg(tiny_net(), **FULL), rounds=3, sampler=FixedSampler([user])))
        assert largest_difference({k: together.row(f"personal.{k}", user) for k in alone}, alone) <= 1e-12


def test_a_huge_prox_takes_dittos_personal_models_to_the_received_one() -> None:
    rows = run(Ditto(tiny_net(), prox=1e6, personal_lr=1e-6, **FULL), rounds=1, sampler="all").loop.states
    for name, start in z_start().items():
        assert float((rows.column(f"personal.{name}") - start).abs().max()) <= 1e-5


def test_finetuning_at_rate_zero_measures_the_local_models() -> None:
    history = run(FedBC(tiny_net(), dual_lr=0.5, **FULL), finetune_lr=0.0).loop.history
    assert history.series("finetuned/acc") == history.series("local/acc")
    assert history.series("finetuned/pooled_acc") == history.series("local/pooled_acc")


# blocks


def test_blocks_without_a_pull_leave_the_server_where_it_was() -> None:
    z = weights_of(run(FedBCD(tiny_net(), prox=0.0, server_sum="sum", lr=0.05, batch_size=4)))
    assert all(torch.equal(z[name], start) for name, start in z_start().items())


def test_a_pull_of_one_reaches_the_received_model() -> None:
    rows = run(FedBCDI(tiny_net(), prox=1.0, lr=0.05, batch_size=4), rounds=1, sampler="all").loop.states
    for name, start in z_start().items():
        assert float((rows.column(f"local.{name}") - start).abs().max()) <= 1e-12
