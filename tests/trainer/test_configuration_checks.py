"""What trainer, client and data cannot do together is refused before any work, with the reason and the way out."""

import inspect
import re
from typing import Any

import pytest
import torch
from pytorch_lightning import Callback, Trainer
from pytorch_lightning.callbacks import EarlyStopping, ModelCheckpoint
from torch import Tensor, nn

from fedlit import MLP, Client, Dual, FedAvg, FedBC, FederatedTrainer, FixedSampler, LeNet, Samples, Softmax, TensorData
from fedlit.client.states import RECEIVED, StateSpec
from fedlit.client.step import Phase
from fedlit.errors import ConfigError
from fedlit.evaluation.round_evaluator import EvaluationOptions
from fedlit.server.sampling import Sampler, SizeSampler, UniformSampler
from fedlit.server.weights import Weighting
from fedlit.trainer.configuration_checks import REFUSED_TRAINER_ARGUMENTS, check_run
from tests.problems import run, tiny_net

FEATURES, CLASSES = 5, 3


def make_data(shape: tuple[int, ...] = (FEATURES,), val_fraction: float = 0.2) -> TensorData:
    """Four clients with ten samples each."""
    rows = torch.arange(40)
    data = TensorData(torch.randn(40, *shape), rows % CLASSES, rows // 10, val_fraction=val_fraction)
    data.setup()
    return data


def check(
    client: Client | None = None,
    data: TensorData | None = None,
    callbacks: tuple[Callback, ...] = (),
    clients_per_round: int = 2,
    sampler: Sampler | None = None,
    weighting: Weighting | None = None,
    measures: EvaluationOptions | None = None,
) -> None:
    """`check_run` on something that works, unless told otherwise."""
    check_run(
        client or FedAvg(Softmax(FEATURES, CLASSES)),
        data or make_data(),
        callbacks,
        clients_per_round=clients_per_round,
        sampler=sampler or UniformSampler(),
        weighting=weighting or Samples(),
        measures=measures or EvaluationOptions(),
    )


# the cohort


def test_a_cohort_may_be_all_clients_and_a_larger_one_is_refused_with_both_numbers() -> None:
    check(clients_per_round=1)
    check(clients_per_round=4)
    with pytest.raises(ConfigError, match="clients_per_round is 5, but .* only 4 clients. Set it to 4 or less"):
        check(clients_per_round=5)


def test_a_sampler_that_names_a_client_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match="client 4, but the data have clients 0 to 3"):
        check(sampler=FixedSampler([0, 4]))


def test_a_sampler_by_size_is_refused_when_too_few_clients_have_samples() -> None:
    data = make_data()
    data.sizes[:3] = 0
    with pytest.raises(ConfigError, match="only 1 clients have training samples"):
        check(data=data, sampler=SizeSampler())


# weights


def test_weights_by_dual_are_for_an_algorithm_with_duals() -> None:
    check(client=FedBC(Softmax(FEATURES, CLASSES)), weighting=Dual())
    with pytest.raises(ConfigError, match="Dual, which reads each client's 'dual', but FedAvg keeps none.*'samples'"):
        check(weighting=Dual())


# monitors


@pytest.mark.parametrize("monitor", ["val/acc", "val/loss"])
@pytest.mark.parametrize("kind", [EarlyStopping, ModelCheckpoint])
def test_only_monitoring_validation_data_needs_them(kind: type[Callback], monitor: str) -> None:
    watching = kind(monitor=monitor)  # type: ignore[call-arg]
    check(callbacks=(watching,))
    check(data=make_data(val_fraction=0), callbacks=(kind(monitor="train/loss"),))  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match=rf"{kind.__name__} monitors '{monitor}'.*data.val_fraction to 0.1"):
        check(data=make_data(val_fraction=0), callbacks=(watching,))


# the net


class Flat(nn.Module):
    """Gives one number per sample and no classes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).squeeze(1)  # type: ignore[no-any-return]  # torch types its layers' results as Any


@pytest.mark.parametrize(
    ("net", "shape", "said"),
    [
        (
            Softmax(FEATURES + 1, CLASSES),
            (FEATURES,),
            r"\(Softmax\) cannot take samples of shape \(5,\) from TensorData",
        ),
        (
            MLP(FEATURES, (4,), CLASSES - 1),
            (FEATURES,),
            r"\(MLP\) gives outputs of shape \(2,\).*3 classes.*at least 3",
        ),
        (LeNet(channels=3), (1, 32, 32), r"\(LeNet\) cannot take samples of shape \(1, 32, 32\)"),
        (LeNet(channels=1), (1, 28, 28), r"\(LeNet\) cannot take samples of shape \(1, 28, 28\)"),
        (Flat(), (FEATURES,), r"\(Flat\) gives outputs of shape \(\), but TensorData has 3 classes"),
    ],
    ids=["features", "classes", "channels", "picture size", "no classes"],
)
def test_a_net_that_does_not_fit_the_data_is_refused(net: nn.Module, shape: tuple[int, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        check(client=FedAvg(net), data=make_data(shape))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("net", "precision"),
    [(Softmax(FEATURES, CLASSES + 2), "32-true"), (Softmax(FEATURES, CLASSES).double(), "64-true")],
    ids=["more outputs", "double precision"],
)
def test_a_net_with_more_outputs_or_digits_than_needed_trains(net: nn.Module, precision: str) -> None:
    before = net.linear.weight.detach().clone()
    trained = run(FedAvg(net), make_data(), rounds=1, precision=precision).loop.server.model["linear.weight"]
    assert trained.dtype == before.dtype
    assert 0 < float((trained - before).abs().max()) < 1


def test_the_check_changes_nothing_in_the_net() -> None:
    net = nn.Sequential(nn.BatchNorm1d(FEATURES), nn.Dropout(0.5), nn.Linear(FEATURES, CLASSES))
    before = {name: value.clone() for name, value in net.state_dict().items()}
    data, random_state = make_data(), torch.get_rng_state()
    check(client=FedAvg(net), data=data)
    assert net.training
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random_state)


# Lightning's arguments


def test_refused_arguments_are_lightnings_own() -> None:
    assert set(REFUSED_TRAINER_ARGUMENTS) <= set(inspect.signature(Trainer.__init__).parameters)
    assert not set(REFUSED_TRAINER_ARGUMENTS) & set(inspect.signature(FederatedTrainer.__init__).parameters)


@pytest.mark.parametrize("name", REFUSED_TRAINER_ARGUMENTS)
def test_an_argument_of_lightning_that_makes_no_sense_is_refused_with_the_reason(name: str) -> None:
    arguments: dict[str, Any] = {name: 1}
    with pytest.raises(ConfigError, match=f"trainer.{name} makes no sense in a federated run: ") as refused:
        FederatedTrainer(**arguments)
    assert re.search(r"\. (Give|Leave) ", str(refused.value)), "what to do instead"


@pytest.mark.parametrize(("name", "meant"), [("round", "rounds"), ("client_per_round", "clients_per_round")])
def test_an_unknown_argument_is_refused_with_the_nearest_one(name: str, meant: str) -> None:
    arguments: dict[str, Any] = {name: 1}
    with pytest.raises(ConfigError, match=f"no argument '{name}'. Did you mean '{meant}'"):
        FederatedTrainer(**arguments)


# what is no client and no data


def test_a_model_that_is_no_client_is_refused() -> None:
    with pytest.raises(ConfigError, match="got a Linear; give it a fedlit Client such as FedAvg"):
        FederatedTrainer(enable_progress_bar=False).fit(nn.Linear(2, 2), datamodule=make_data())  # type: ignore[arg-type]


@pytest.mark.parametrize("data", [None, [1, 2]])
def test_data_that_are_no_federated_data_are_refused(data: Any) -> None:
    with pytest.raises(ConfigError, match="FederatedDataModule.*wrap your arrays in TensorData"):
        FederatedTrainer(enable_progress_bar=False).fit(FedAvg(Softmax(FEATURES, CLASSES)), datamodule=data)


# what is measured


class Passing(TensorData):
    """Clients that are new in every round."""

    is_fresh = True


def test_the_objective_over_all_clients_is_refused_where_clients_pass() -> None:
    rows = torch.arange(8)
    data = Passing(torch.randn(8, FEATURES), rows % CLASSES, rows // 4)
    data.setup()
    with pytest.raises(ConfigError, match="trainer.extra_metrics asks for global/train_loss"):
        check(data=data, clients_per_round=2, measures=EvaluationOptions(("global/train_loss",)))


def test_an_extra_metric_that_does_not_exist_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'global/grad_norm2'"):
        FederatedTrainer(extra_metrics=["global/grad_norm"])


# names of states


def keeping(kept: dict[str, Any], sent: dict[str, Any] | None = None, carried: tuple[str, ...] = ()) -> Client:
    """A client with these states."""

    class Keeper(FedAvg):
        def state_spec(self) -> StateSpec:
            return kept

        def sent_spec(self) -> StateSpec:
            return sent or {}

        def carried_states(self) -> tuple[str, ...]:
            return carried

    return Keeper(Softmax(FEATURES, CLASSES))


STANDS_FOR = {
    "own": "the tensors of keep_local",
    "memory": "the local optimiser's state",
    "received": "the received model",
    "trained": "the model of the phase before",
    "global": "the server's model",
    "loss": "the loss in a step's dict",
    "task": "the logged loss",
}


@pytest.mark.parametrize("initial", [0.0, RECEIVED], ids=["number", "model"])
@pytest.mark.parametrize(("name", "what"), STANDS_FOR.items(), ids=list(STANDS_FOR))
def test_reserved_names_of_states_are_refused(name: str, what: str, initial: Any) -> None:
    with pytest.raises(ConfigError, match=rf"declares a state named '{name}', but that name means {what}"):
        check(keeping({name: initial}))


@pytest.mark.parametrize("name", ["weights", "net", "lr", "forward", "task_loss", "trainer", "needs", "device"])
def test_states_that_shadow_an_attribute_of_the_client_are_refused(name: str) -> None:
    for client in (keeping({name: 0.0}), keeping({}, sent={name: RECEIVED})):
        with pytest.raises(ConfigError, match=rf"state named '{name}', but Keeper\.{name} is something else already"):
            check(client)


@pytest.mark.parametrize("name", ["my.state", "2nd", "a-b", ""])
def test_states_that_a_step_could_not_read_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"state named '{re.escape(name)}', but a step reads it as self\.<name>"):
        check(keeping({name: 0.0}))


def test_a_number_named_local_is_refused_and_a_model_is_not() -> None:
    with pytest.raises(ConfigError, match=r"'local' is x_i, a whole model, and here it starts as 0\.5"):
        check(keeping({"local": 0.5}))
    check(keeping({"local": RECEIVED}))


def test_a_state_that_is_kept_and_sent_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'control', but in both state_spec\(\) and sent_spec\(\)"):
        check(keeping({"control": 0.0}, sent={"control": 0.0}))


def test_a_carried_state_must_be_declared() -> None:
    with pytest.raises(ConfigError, match=r"carries a state named 'theta', but its state_spec\(\) lacks it"):
        check(keeping({}, carried=("theta",)))


def test_a_client_that_is_prepared_may_be_checked_again() -> None:
    client = keeping({"dual": 0.0, "local": RECEIVED}, sent={"control": RECEIVED})
    client.prepare()
    check(client)


def test_names_are_checked_when_states_become_attributes_as_well() -> None:
    with pytest.raises(ConfigError, match="state named 'own'"):
        keeping({"own": RECEIVED}).prepare()


def test_a_client_that_chooses_lightnings_optimisers_is_refused() -> None:
    """It would silently replace the server's."""

    class WithAdam(FedAvg):
        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.net.parameters())

    with pytest.raises(ConfigError, match="WithAdam overrides configure_optimizers.*trainer.server_optimizer"):
        run(WithAdam(tiny_net()))


class Silent(FedAvg):
    """Its phases are those of the test."""

    def __init__(self, net: nn.Module, own: list[Phase]) -> None:
        super().__init__(net)
        self.own = own

    def state_spec(self) -> StateSpec:
        return {"personal": RECEIVED}

    def phases(self) -> list[Phase]:
        return self.own


PERSONAL = Phase("personal", writes="personal")


@pytest.mark.parametrize(
    "phases",
    [[PERSONAL], [PERSONAL, Phase("refined", start="trained")]],
    ids=["writes alone", "refines what is not there"],
)
def test_a_client_that_never_trains_the_model_it_sends_is_refused(phases: list[Phase]) -> None:
    with pytest.raises(ConfigError, match=r"Silent\.phases\(\) never trains the model that clients send"):
        check(client=Silent(Softmax(FEATURES, CLASSES), phases))
