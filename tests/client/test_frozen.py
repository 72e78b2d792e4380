"""Frozen parts of a net: what counts as trained, by names, buffers and modes; options that are refused."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedlit import MLP, Ditto, FedAvg
from fedlit.client.net_parts import begin_training, frozen, frozen_state, trained, trained_buffers, trained_params
from fedlit.errors import ConfigError
from tests.problems import CLASSES, FEATURES, run

HEAD = ["head.1.weight", "head.1.bias"]
STATISTICS = ["head.0.running_mean", "head.0.running_var", "head.0.num_batches_tracked"]


class Based(nn.Module):
    """A base with BatchNorm and dropout, a head with BatchNorm, and a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Sequential(nn.Linear(FEATURES, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.ReLU())
        self.head = nn.Sequential(nn.BatchNorm1d(6, affine=False), nn.Linear(6, CLASSES))
        self.register_buffer("scale", torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        output: Tensor = self.head(self.base(x) * self.scale)
        return output


def based() -> Based:
    torch.manual_seed(4)
    net = Based()
    net.base.requires_grad_(False)
    return net


# what is trained


def test_a_net_without_frozen_parameters_is_trained_as_a_whole() -> None:
    net = Based()
    assert list(trained(net)) == [name for name, _ in [*net.named_parameters(), *net.named_buffers()]]
    assert (frozen(net), frozen_state(net)) == ({}, {})


def test_buffers_go_with_the_parameters_of_their_module_or_of_the_smallest_one_around_it() -> None:
    net = based()
    assert (list(trained_params(net)), list(trained_buffers(net))) == (HEAD, STATISTICS)
    assert {"scale", "base.1.running_mean", "base.0.weight"} <= frozen(net).keys()
    assert trained(net).keys() | frozen(net).keys() == net.state_dict().keys()
    net.head[1].weight.requires_grad_(False)  # a part of the head: its statistics are no longer moved
    assert list(trained_buffers(net)) == []


def test_a_tensor_with_two_names_is_trained_or_frozen_under_both() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    net[1].weight = net[0].weight
    FedAvg(net, train="1.weight")
    assert list(trained_params(net)) == ["0.weight"]
    assert frozen_state(net).keys() == {"0.bias", "1.bias"}


def test_frozen_layers_normalise_by_their_statistics_and_everything_else_is_in_training_mode() -> None:
    net = based().eval()
    begin_training(net)
    assert {name for name, module in net.named_modules() if not module.training} == {"base.1"}


@pytest.mark.parametrize(
    ("train", "names"),
    [
        ("head", HEAD),
        ("base.0.bias", ["base.0.bias"]),
        (["base.1", "head.1.bias"], ["base.1.weight", "base.1.bias", "head.1.bias"]),
        ("*.bias", ["base.0.bias", "base.1.bias", "head.1.bias"]),
    ],
)
def test_train_names_modules_parameters_or_patterns(train: Any, names: list[str]) -> None:
    client = FedAvg(based(), train=train)
    assert list(client.local_params) == names
    assert client.model_numbers == sum(value.numel() for value in trained(client.net).values())


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_dropout_of_a_frozen_part_still_drops_unless_its_module_is_for_evaluation_alone(engine: str) -> None:
    def loss(net: nn.Module) -> float:
        options: dict[str, Any] = {"engine": engine} | ({} if engine == "sequential" else {"compiled": False})
        return float(run(FedAvg(net.double(), lr=0.1), rounds=1, **options).history["train/loss"][1])

    class Still(Based):
        def train(self, mode: bool = True) -> "Still":
            super().train(mode)
            self.base.eval()
            return self

    dropping, still, plain = based(), Still(), based()
    still.load_state_dict(plain.state_dict())
    still.base.requires_grad_(False)
    plain.base[2].p = 0.0
    assert loss(dropping) != loss(still) == loss(plain)


# bad input


def test_an_unknown_part_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match=r"model\.train is 'haed', but no parameter .* Did you mean 'head'"):
        FedAvg(based(), train="haed")
    with pytest.raises(ConfigError, match=r"model\.train is an empty list"):
        FedAvg(based(), train=[])


def test_a_net_of_which_nothing_is_trained_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"Based\) has nothing to train.*model\.train"):
        run(FedAvg(based().requires_grad_(False).double()))


@pytest.mark.parametrize("kept", ["base", "base.0.weight", "scale"])
def test_a_client_cannot_keep_what_is_frozen(kept: str) -> None:
    with pytest.raises(ConfigError, match=rf"keep_local is '{kept}', but that part of the net is frozen.*model\.train"):
        FedAvg(based(), keep_local=kept)
    client = Ditto(Based().double(), keep_local=kept)
    client.net.requires_grad_(False)
    client.net.head.requires_grad_(True)
    with pytest.raises(ConfigError, match="that part of the net is frozen"):
        run(client)


def test_fine_tuning_a_frozen_part_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"finetune_part is 'base', but that part .* is frozen.*head\.1\.weight"):
        run(FedAvg(based().double()), finetune_lr=0.1, finetune_part="base")


def test_a_client_that_has_trained_another_part_is_refused() -> None:
    client = FedAvg(MLP(FEATURES, (4,), CLASSES).double(), train="layers.2", lr=0.1)
    run(client, rounds=1)
    client.net.requires_grad_(True)
    with pytest.raises(ConfigError, match="has trained another part of its net before"):
        run(client, rounds=1)
