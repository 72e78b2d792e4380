"""Newcomers: what each algorithm gives them, by plain gradient descent as oracle; what they never change; records."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pytorch_lightning import Trainer
from torch import Tensor, nn
from torch.func import functional_call, grad
from torch.nn.functional import cross_entropy

from examples.apfl import APFL
from examples.fedrep import FedRep
from fedlit import (
    SGD,
    Buffer,
    Client,
    Clock,
    Cloud,
    Cohort,
    Constant,
    Ditto,
    Exponential,
    FedAvg,
    FedBC,
    FedBCD,
    FedDyn,
    FederatedTrainer,
    Latency,
    PerFedAvg,
    PFedMe,
    Scaffold,
    ServerCallback,
    TensorData,
)
from fedlit.cli.main import main
from fedlit.engines.forward import CHUNK
from fedlit.errors import ConfigError, ResumeError
from fedlit.experiments.conformance.problem import everything
from fedlit.results.records import read_clients
from fedlit.results.runs import read_run
from fedlit.rounds.newcomers import homes_of
from tests.problems import CLASSES, FEATURES, run, tiny_data, tiny_net

EPOCHS, LR, L2 = 3, 0.2, 0.1
WHOLE: dict[str, Any] = {"lr": LR, "l2": L2, "batch_size": 100, "local_epochs": EPOCHS}
"""Batches of everything: each step is one of gradient descent, whatever is drawn."""
SIZES = (7, 12, 16, 23, 30, 9, 14, 21)
Model = dict[str, Tensor]


def data(newcomers: float = 0.25, **options: Any) -> TensorData:
    return tiny_data(SIZES, newcomers=newcomers, **options)


def met(client: Client, share: float = 0.25, **options: Any) -> FederatedTrainer:
    """A run of three rounds with six users; two of the eight clients come after it."""
    return run(client, data(share), **({"rounds": 3} | options))


def models_of(trainer: FederatedTrainer, server: int = 0) -> dict[int, Model]:
    """What the algorithm gives to each newcomer, before a step at evaluation."""
    newcomers = trainer.loop.parts.newcomers
    assert newcomers is not None
    home = trainer.loop.federation.servers[server]
    clients = list(range(newcomers.users.num_clients, newcomers.data.num_clients))
    models = newcomers.models(home, clients, newcomers.client.newcomer(), trainer.loop.call)
    return {client: dict(models.personal(client)) for client in clients}


def descended(
    trainer: FederatedTrainer,
    newcomer: int,
    steps: int,
    lr: float = LR,
    *,
    near: float = 0.0,
    only: tuple[str, ...] = ("linear.weight", "linear.bias"),
) -> Model:
    """`steps` of gradient descent on f(x) + near/2 |x - z|² from z, over the newcomer's training rows."""
    population = trainer.loop.data.newcomer_data
    assert population is not None
    x, y = population.rows(population.store, population.everyone.train[newcomer])
    net, z = trainer.loop.client.net, {name: value.clone() for name, value in trainer.loop.server.model.items()}

    def loss(moved: Mapping[str, Tensor]) -> Tensor:
        model = z | dict(moved)
        pull = sum(((model[name] - z[name]) ** 2).sum() for name in z)
        size = sum((value**2).sum() for value in model.values())
        return cross_entropy(functional_call(net, model, (x,)), y) + L2 / 2 * size + near / 2 * pull

    model = z
    for _ in range(steps):
        moved = {name: model[name] for name in only}
        slope = grad(loss)(moved)
        model = model | {name: moved[name] - lr * slope[name] for name in only}
    return model


WANTED: dict[str, tuple[Callable[[nn.Module], Client], Callable[[FederatedTrainer, int], Model]]] = {
    "FedAvg": (lambda net: FedAvg(net, **WHOLE), lambda trainer, who: descended(trainer, who, 0)),
    "SCAFFOLD": (lambda net: Scaffold(net, **WHOLE), lambda trainer, who: descended(trainer, who, 0)),
    "FedBC": (
        lambda net: FedBC(net, dual_init=0.4, **WHOLE),
        lambda trainer, who: descended(trainer, who, EPOCHS, near=2 * 0.4),
    ),
    "FedBC, from its own model": (
        lambda net: FedBC(net, dual_init=0.4, start_from="local", **WHOLE),
        lambda trainer, who: descended(trainer, who, EPOCHS, near=2 * 0.4),
    ),
    "Per-FedAvg": (lambda net: PerFedAvg(net, **WHOLE), lambda trainer, who: descended(trainer, who, 0)),
    "pFedMe": (
        lambda net: PFedMe(net, prox=4.0, personal_lr=0.05, inner_steps=2, **WHOLE),
        lambda trainer, who: descended(trainer, who, 2 * EPOCHS, 0.05, near=4.0),
    ),
    "Ditto": (
        lambda net: Ditto(net, prox=0.7, personal_lr=0.1, personal_steps=4, **WHOLE),
        lambda trainer, who: descended(trainer, who, 4, 0.1, near=0.7),
    ),
    "Ditto, interleaved": (
        lambda net: Ditto(net, prox=0.7, personal_lr=0.1, order="interleaved", **WHOLE),
        lambda trainer, who: descended(trainer, who, EPOCHS, 0.1, near=0.7),
    ),
    "FedRep": (
        lambda net: FedRep(net, keep_local="linear.bias", head_epochs=5, **WHOLE),
        lambda trainer, who: descended(trainer, who, 5, only=("linear.bias",)),
    ),
    "a personal bias": (
        lambda net: FedAvg(net, keep_local="linear.bias", **WHOLE),
        lambda trainer, who: (
            descended(trainer, who, 0) | {"linear.bias": descended(trainer, who, EPOCHS)["linear.bias"]}
        ),
    ),
    "local only": (
        lambda net: FedAvg(net, keep_local="all", **WHOLE),
        lambda trainer, who: descended(trainer, who, EPOCHS),
    ),
    "FedBCD": (
        lambda net: FedBCD(
            net, prox=[0.1, 0.9, 0.2, 0.4, 0.4, 0.4], extrapolation=0.0, box=None, most_steps=1, **WHOLE
        ),
        lambda trainer, who: descended(trainer, who, 1, near=0.4),  # the mean of the γ_i
    ),
    "APFL": (
        lambda net: APFL(net, mix=1.0, adaptive=False, **WHOLE),
        lambda trainer, who: descended(trainer, who, EPOCHS),
    ),
}


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize("name", WANTED)
def test_a_newcomer_gets_what_the_algorithm_says(name: str, engine: Any) -> None:
    make, wanted = WANTED[name]
    options = {"compiled": False} if engine == "vectorized" else {}
    trainer = met(make(tiny_net()), engine=engine, **options)
    for newcomer, model in models_of(trainer).items():
        own = wanted(trainer, newcomer)
        assert max(float((model[key] - own[key]).abs().max()) for key in own) < 1e-10


def test_their_accuracies_are_those_of_their_models_on_their_own_tests() -> None:
    trainer = met(PerFedAvg(tiny_net(), adapt_lr=0.3, **WHOLE))
    population = trainer.loop.data.newcomer_data
    assert population is not None
    accuracies, of_z = [], []
    for newcomer in (6, 7):
        x, y = population.rows(population.store, population.everyone.test[newcomer])
        z, own = descended(trainer, newcomer, 0), descended(trainer, newcomer, 1, 0.3)
        for model, found in ((own, accuracies), (z, of_z)):
            guess = functional_call(trainer.loop.client.net, model, (x,)).argmax(1)
            found.append(float((guess == y).double().mean()))
    final = trainer.summary["final"]
    assert final["newcomers/acc"] == pytest.approx(np.mean(accuracies))
    assert final["newcomers/global_acc"] == pytest.approx(np.mean(of_z))
    assert (final["newcomers/acc_min"], final["newcomers/acc_max"]) == (min(accuracies), max(accuracies))
    assert final["newcomers/acc_var"] == pytest.approx(np.var(accuracies))
    assert trainer.newcomers["acc_personal"].tolist() == pytest.approx(accuracies)
    assert trainer.newcomers["client"].tolist() == [6, 7]
    assert trainer.summary["newcomers"] == "2 clients; each gets z after one step of rate 0.3 on train data"


def test_fine_tuned_newcomers_are_a_plain_loop_from_what_they_get() -> None:
    tuning = {"finetune_lr": 0.3, "finetune_epochs": 2}
    trainer = met(FedAvg(tiny_net(), **WHOLE), **tuning)
    population = trainer.loop.data.newcomer_data
    assert population is not None
    right = []
    for newcomer in (6, 7):
        x, y = population.rows(population.store, population.everyone.test[newcomer])
        tuned = descended(trainer, newcomer, 2, 0.3)
        right.append(float((functional_call(trainer.loop.client.net, tuned, (x,)).argmax(1) == y).double().mean()))
    assert trainer.summary["final"]["newcomers/finetuned_acc"] == pytest.approx(np.mean(right))


def test_newcomers_are_measured_after_the_last_round_and_when_they_are_asked_for() -> None:
    def rounds_of(**options: Any) -> list[int]:
        history = met(FedAvg(tiny_net(), **WHOLE), rounds=5, eval_every=2, **options).history
        return history["round"][~np.isnan(history["newcomers/acc"])].tolist()

    assert rounds_of() == [5]
    assert rounds_of(newcomers_every=2) == [0, 2, 4, 5]
    assert rounds_of(newcomers_every=4) == [0, 4, 5]


def test_without_z_as_a_whole_model_newcomers_have_no_accuracy_of_it() -> None:
    trainer = met(FedRep(tiny_net(), **WHOLE))
    assert "newcomers/global_acc" not in trainer.summary["final"]
    assert np.isnan(trainer.newcomers["acc_global"]).all()
    assert not np.isnan(trainer.newcomers["acc_personal"]).any()


class Counting(ServerCallback):
    """Sends its count, which goes up with every cohort."""

    def __init__(self) -> None:
        self.cohorts = 0

    def on_cohort_start(self, trainer: Trainer, client: Client, cohort: Cohort) -> None:
        """One more."""
        self.cohorts += 1

    def state_dict(self) -> dict[str, Any]:
        """The count."""
        return {"cohorts": self.cohorts}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The inverse."""
        self.cohorts = state_dict["cohorts"]


def test_what_a_callback_changes_while_it_sends_to_newcomers_is_undone() -> None:
    counting = Counting()
    met(FedBC(tiny_net(), **WHOLE), newcomers_every=1, callbacks=[counting])
    assert counting.cohorts == 3


def test_samples_of_newcomers_change_nothing_of_the_run() -> None:
    """The other half of the law of conformance: the newcomers' numbers are damaged here, not left out."""
    damaged = data()
    damaged.setup()
    assert damaged.newcomer_data is not None
    rows = torch.cat([damaged.newcomer_data.everyone.train.joined, damaged.newcomer_data.everyone.test.joined])
    damaged.store["x"][rows] = 1e3
    options = {"rounds": 3, "newcomers_every": 1}
    with_damage = run(Ditto(tiny_net(), **WHOLE), damaged, **options)
    without = run(Ditto(tiny_net(), **WHOLE), data(), **options)
    assert with_damage.newcomers["loss"].tolist() != without.newcomers["loss"].tolist()
    assert all(torch.equal(value, everything(without)[name]) for name, value in everything(with_damage).items())


@pytest.mark.parametrize("name", ["FedBC", "pFedMe", "Ditto"])
def test_both_engines_give_newcomers_the_same_on_ragged_batches(name: str) -> None:
    ragged = {"lr": 0.1, "batch_size": 4, "local_epochs": 2}
    make = {
        "FedBC": lambda: FedBC(tiny_net(), dual_init=0.4, **ragged),
        "pFedMe": lambda: PFedMe(tiny_net(), **ragged),
        "Ditto": lambda: Ditto(tiny_net(), **ragged),
    }[name]
    slow, fast = met(make()), met(make(), engine="vectorized", compiled=False, lanes=2)
    for who, model in models_of(slow).items():
        assert all(torch.allclose(model[key], value, atol=1e-12) for key, value in models_of(fast)[who].items())


def test_pfedmes_newcomers_use_the_program_of_its_clients() -> None:
    """A second one would be compiled for minutes after the last round."""
    trainer = met(PFedMe(tiny_net(), **WHOLE), engine="vectorized", compiled=False)
    assert len(trainer.loop.parts.training.engine._crews) == 1  # type: ignore[attr-defined]  # the vectorized engine's


def test_a_resumed_run_measures_the_same_newcomers(tmp_path: Path) -> None:
    options: dict[str, Any] = {"newcomers_every": 1, "finetune_lr": 0.1}
    whole = met(FedBC(tiny_net(), dual_init=0.2, **WHOLE), rounds=4, **options)
    met(FedBC(tiny_net(), dual_init=0.2, **WHOLE), rounds=2, run=tmp_path / "run", **options)
    rest = met(FedBC(tiny_net(), dual_init=0.2, **WHOLE), rounds=4, run=tmp_path / "run", resume=True, **options)
    names = [name for name in whole.loop.history.columns if name.startswith("newcomers/")]
    assert len(names) == 8
    for name in names:
        assert whole.history[name].tolist() == rest.history[name].tolist()


def test_another_share_of_newcomers_is_another_run(tmp_path: Path) -> None:
    met(FedAvg(tiny_net(), **WHOLE), run=tmp_path / "run")
    with pytest.raises(ResumeError, match="newcomers"):
        met(FedAvg(tiny_net(), **WHOLE), share=0.5, run=tmp_path / "run", rounds=4, resume=True)


# ---- records ---------------------------------------------------------------------------------------------------------


def test_records_of_newcomers_stand_beside_those_of_users_and_are_read_apart(tmp_path: Path) -> None:
    trainer = met(FedBC(tiny_net(), **WHOLE), run=tmp_path / "run")
    found = read_run(tmp_path / "run")
    assert found.newcomers["client"].to_pylist() == [6, 7]
    assert found.newcomers["round"].to_pylist() == [3, 3]
    assert found.newcomers["acc_personal"].to_pylist() == trainer.newcomers["acc_personal"].tolist()
    assert set(found.clients["client"].to_pylist()) == set(range(6))
    assert "newcomer" not in found.clients.column_names, "or figures would take it for a state"
    assert trainer.users["client"].tolist() == list(range(6))


def test_a_run_without_newcomers_has_no_column_and_no_rows_of_them(tmp_path: Path) -> None:
    trainer = met(FedAvg(tiny_net(), **WHOLE), share=0.0, run=tmp_path / "run")
    assert "newcomer" not in read_clients(tmp_path / "run").column_names
    assert read_clients(tmp_path / "run", newcomers=True).num_rows == 0
    assert not [name for name in trainer.loop.history.columns if "newcomer" in name]
    with pytest.raises(ConfigError, match="data.newcomers is 0, so no client was held back"):
        trainer.newcomers  # noqa: B018  # reading it is what is refused


# ---- servers ---------------------------------------------------------------------------------------------------------


def test_newcomers_come_to_the_server_of_their_group_else_to_each_in_turn() -> None:
    members = [np.array([0, 1]), np.array([2, 3])]
    groups = ["a", "a", "b", "c"]
    found = homes_of(members, groups, [4, 5, 6, 7], [*groups, "b", "", "a", "d"])
    assert found == {4: 1, 5: 1, 6: 0, 7: 1}, "b is at the second server, a at the first; the others take turns"
    both = homes_of(members, ["a", "b", "a", "b"], [4, 5, 6], ["a", "b", "a", "b", "a", "b", "b"])
    assert both == {4: 0, 5: 1, 6: 0}, "groups that several servers have say nothing"


def test_in_a_cloud_a_newcomer_gets_the_model_of_one_server() -> None:
    trainer = met(
        FedAvg(tiny_net(), **WHOLE),
        cloud=Cloud(servers=2, first=2),
        clients_per_round=1,
        server_optimizer=SGD(lr=0.5),
    )
    first, second = (server.model for server in trainer.loop.federation.servers)
    assert not torch.equal(first["linear.weight"], second["linear.weight"])
    population = trainer.loop.data.newcomer_data
    assert population is not None
    for newcomer, model in ((6, first), (7, second)):  # without groups, each server in turn
        x, y = population.rows(population.store, population.everyone.test[newcomer])
        right = (functional_call(trainer.loop.client.net, dict(model), (x,)).argmax(1) == y).double().mean()
        assert trainer.newcomers["acc_personal"][newcomer - 6] == pytest.approx(float(right))


def test_with_a_buffer_newcomers_get_the_present_z() -> None:
    clock = Clock(Latency(arrival=Exponential(2.0), compute=Constant(1.0)))
    trainer = met(FedBC(tiny_net(), dual_init=0.4, **WHOLE), buffer=Buffer(size=2, concurrency=3), clock=clock)
    for newcomer, model in models_of(trainer).items():
        own = descended(trainer, newcomer, EPOCHS, near=0.8)
        assert all(torch.allclose(model[key], own[key], atol=1e-10) for key in own)


def test_feddyn_gives_newcomers_the_model_that_is_measured() -> None:
    trainer = met(FedDyn(tiny_net(), eval_model="cohort_mean", **WHOLE))
    assert torch.equal(models_of(trainer)[6]["linear.weight"], trainer.loop.server.global_model["linear.weight"])


@pytest.mark.slow
def test_a_chunk_of_newcomers_does_not_depend_on_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = met(Ditto(tiny_net(), **WHOLE), share=0.5)
    monkeypatch.setattr("fedlit.rounds.newcomers.HELD_BYTES", 1.0)
    apart = met(Ditto(tiny_net(), **WHOLE), share=0.5, clients_per_round=1)
    assert len(whole.newcomers["client"]) == len(apart.newcomers["client"]) == 4
    assert CHUNK > 100


# ---- what is refused -------------------------------------------------------------------------------------------------


def test_newcomers_that_leave_too_few_clients_are_refused() -> None:
    with pytest.raises(
        ConfigError, match="clients_per_round is 3, .* only 2 clients beside the newcomers.* lower data"
    ):
        met(FedAvg(tiny_net(), **WHOLE), share=0.75)


def test_newcomers_every_without_newcomers_is_refused() -> None:
    with pytest.raises(ConfigError, match="newcomers_every is 2, but data.newcomers is 0"):
        met(FedAvg(tiny_net(), **WHOLE), share=0.0, newcomers_every=2)


@pytest.mark.parametrize("every", [0, -2, 3])
def test_newcomers_are_measured_in_evaluated_rounds_alone(every: int) -> None:
    with pytest.raises(ConfigError, match="newcomers_every is .*, and trainer.eval_every is 2. Give a multiple"):
        FederatedTrainer(eval_every=2, newcomers_every=every)


def test_newcomers_without_test_samples_are_refused() -> None:
    owners = np.repeat(np.arange(4), 5)
    rng = np.random.default_rng(0)
    untested = TensorData(
        rng.normal(size=(20, FEATURES)), rng.integers(CLASSES, size=20), owners, test_fraction=0.0, newcomers=0.25
    )
    with pytest.raises(ConfigError, match="no client that is held back has test samples"):
        run(FedAvg(tiny_net()), untested, clients_per_round=2)


def test_a_state_cannot_be_called_newcomer() -> None:
    class Clashing(FedAvg):
        def state_spec(self) -> Any:
            return {"newcomer": 0.0}

    with pytest.raises(ConfigError, match="declares a state named 'newcomer'"):
        met(Clashing(tiny_net()))


def test_the_command_line_refuses_a_share_of_one(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["--model", "FedAvg", "--model.net", "fedlit.Softmax", "--data", "Synthetic", "--data.newcomers", "1"]
    with pytest.raises(SystemExit) as ended:
        main(["fit", *words, "--run", str(tmp_path / "run")])
    assert ended.value.code == 2
    assert "data.newcomers is 1" in " ".join(capsys.readouterr().err.split())
