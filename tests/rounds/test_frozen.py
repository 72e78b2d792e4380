"""The law of frozen weights: no run changes a bit of them, sends a byte of them, or keeps them twice."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedlit import Client, FedAvg, FedBC, FederatedTrainer, Softmax, TensorData
from fedlit.cli.export import exported
from fedlit.client.net_parts import frozen, trained
from fedlit.engines import compiler, vectorized
from fedlit.errors import FedlitError
from fedlit.experiments.conformance.problem import everything, largest_gap, tensors
from fedlit.trainer.restore import Restored
from tests.cases import CASES, KINDS, made, slow_but
from tests.conftest import Call
from tests.problems import CLASSES, FEATURES, kept_rows, run, tiny_data, traced_program

WIDTH = 4
LOCAL: dict[str, Any] = {"lr": 0.1, "batch_size": 4, "local_epochs": 1}
EAGER: dict[str, Any] = {"engine": "vectorized", "compiled": False}
ENGINES: dict[str, dict[str, Any]] = {"sequential": {"engine": "sequential"}, "vectorized": EAGER}


class OnABase(nn.Module):
    """Softmax regression on the features of a frozen part, which has statistics of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Sequential(nn.Linear(FEATURES, WIDTH), nn.BatchNorm1d(WIDTH), nn.Tanh())
        self.linear = nn.Linear(WIDTH, CLASSES)
        self.base.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        output: Tensor = self.linear(self.base(x))
        return output


def on_a_base(seed: int = 5) -> OnABase:
    torch.manual_seed(seed)
    net = OnABase().double()
    net.base[1].running_mean.normal_()
    return net


def names_of(content: Any) -> Iterator[str]:
    """The path to every tensor in a checkpoint."""
    return (name for name, value in tensors(content, "") if value.numel())


@pytest.mark.usefixtures("few_inner_steps")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", slow_but(KINDS, CASES))
def test_frozen_weights_keep_their_bits_and_are_neither_counted_nor_stored_again(
    name: str, engine: str, tmp_path: Path
) -> None:
    """Every algorithm, in both engines, through checkpoint, resume and export."""
    options = {"rounds": 3, **ENGINES[engine], **CASES[name].trainer}
    folder, before = tmp_path / "run", on_a_base().state_dict()

    def fitted(**more: Any) -> FederatedTrainer:
        return run(made(name, on_a_base(), **LOCAL), **(options | more))

    whole = fitted()
    fitted(rounds=2, run=folder)
    resumed = fitted(run=folder, resume=True)
    assert largest_gap(everything(whole), everything(resumed)) == 0
    assert not any("base" in key for key in everything(resumed))
    for key, value in resumed.loop.client.net.base.state_dict().items():
        assert torch.equal(value, before[f"base.{key}"])

    head = run(made(name, Softmax(WIDTH, CLASSES).double(), **LOCAL), tiny_data(shape=(WIDTH,)), **options)
    for column in ("comm/up_mb", "comm/down_mb"):
        assert resumed.history[column][1:].tolist() == head.history[column][1:].tolist()

    for path in ("last.ckpt", "previous.ckpt"):
        assert not any("base" in key for key in names_of(torch.load(folder / "checkpoints" / path, weights_only=True)))
    kept = torch.load(folder / "checkpoints" / "frozen.pt", weights_only=True)
    assert kept.keys() == {key for key in before if key.startswith("base")}

    files = exported(Restored.of(folder))
    on_a_base(9).load_state_dict(files["global.pt"][0])
    assert all(torch.equal(files["global.pt"][0][key], before[key]) for key in kept)
    for user in files.get("personal.pt", ({}, ""))[0].values():
        assert user.keys() == {"linear.weight", "linear.bias"}


@pytest.mark.parametrize("name", ["FedBC", "SCAFFOLD II", "Per-FedAvg, exact"])
def test_the_program_that_is_compiled_has_frozen_weights_as_inputs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """None is a constant of it, and all clients share one."""
    graphs = []

    def noted(program: Any, args: Any, **_: Any) -> Any:
        graphs.append(compiler.traced(program, args))
        return traced_program(program, args)

    monkeypatch.setattr(vectorized, "compile_program", noted)
    slow = run(made(name, on_a_base(), **LOCAL), rounds=2)
    fast = run(made(name, on_a_base(), **LOCAL), rounds=2, engine="vectorized", compiled=True)
    assert largest_gap(everything(slow), everything(fast)) < 1e-10
    constants = [
        getattr(module, str(node.target))
        for graph in graphs
        for module in graph.modules()
        if hasattr(module, "graph")
        for node in module.graph.nodes
        if node.op == "get_attr"
    ]
    assert [one for one in constants if isinstance(one, Tensor) and one.numel() > 1] == []


# what a run is


def folder_of(folder: Path, net: nn.Module, **options: Any) -> FederatedTrainer:
    return run(FedAvg(net, **LOCAL), run=folder, rounds=options.pop("rounds", 1), **options)


def test_a_run_is_not_resumed_with_other_frozen_weights_or_another_trained_part(tmp_path: Path) -> None:
    folder_of(tmp_path, on_a_base())
    with pytest.raises(FedlitError, match=r"net\.frozen was .*the net's frozen weights are others"):
        folder_of(tmp_path, on_a_base(6), resume=True, rounds=2)
    more = on_a_base()
    more.base[0].requires_grad_(True)
    with pytest.raises(FedlitError, match=r"net\.(frozen|trained) was"):
        folder_of(tmp_path, more, resume=True, rounds=2)
    folder_of(tmp_path, on_a_base(), resume=True, rounds=2)


def test_a_checkpoint_refuses_them_too_where_the_settings_are_those_of_the_command_line(tmp_path: Path) -> None:
    def fitted(net: nn.Module, **options: Any) -> None:
        trainer = FederatedTrainer(
            clients_per_round=2, engine="sequential", enable_progress_bar=False, initial_weights="net", run=tmp_path,
            **options,
        )  # fmt: skip
        trainer.config = {"model": {"class_path": "fedlit.FedAvg"}, "data": {}, "trainer": {}}
        trainer.fit(FedAvg(net, **LOCAL), datamodule=tiny_data())

    fitted(on_a_base().float(), rounds=1)
    with pytest.raises(FedlitError, match=r"another frozen part \(fingerprint .*frozen\.pt, which model\.init_from"):
        fitted(on_a_base(6).float(), rounds=2, resume=True)
    more = on_a_base().float()
    more.base[0].requires_grad_(True)
    with pytest.raises(FedlitError, match=r"trains another part .*net\.base\.0\.weight was frozen, and here it is tra"):
        fitted(more, rounds=2, resume=True)
    less = on_a_base().float()
    less.linear.bias.requires_grad_(False)
    with pytest.raises(FedlitError, match=r"trains another part .*net\.linear\.bias was trained, and here it is froz"):
        fitted(less, rounds=2, resume=True)
    fitted(on_a_base().float(), rounds=2, resume=True)


def test_a_run_without_a_folder_has_them_once_in_its_checkpoint(tmp_path: Path) -> None:
    trainer = run(FedBC(on_a_base(), **LOCAL), rounds=2)
    trainer.save_checkpoint(tmp_path / "end.ckpt")
    content = torch.load(tmp_path / "end.ckpt", weights_only=True)
    assert [key for key in names_of(content) if "base.0.weight" in key] == [".state_dict.net.base.0.weight"]
    again = FederatedTrainer(rounds=3, clients_per_round=3, engine="sequential", precision="64-true",
                             initial_weights="net", enable_progress_bar=False)  # fmt: skip
    again.fit(FedBC(on_a_base(8), **LOCAL), datamodule=tiny_data(), ckpt_path=tmp_path / "end.ckpt")
    whole = run(FedBC(on_a_base(), **LOCAL), rounds=3)
    assert largest_gap(everything(whole), everything(again)) == 0


def test_a_checkpoint_of_a_folder_needs_the_net_that_it_was_trained_with(tmp_path: Path) -> None:
    trainer = folder_of(tmp_path, on_a_base())
    loaded = FedAvg.load_from_checkpoint(tmp_path / "checkpoints" / "last.ckpt", net=on_a_base())
    assert torch.equal(loaded.net.linear.weight, trainer.loop.client.net.linear.weight)


def test_weights_that_the_seed_draws_are_the_trained_ones_alone() -> None:
    def begun(seed: int) -> tuple[Client, dict[str, Tensor]]:
        trainer = run(FedAvg(on_a_base(), **LOCAL), rounds=1, initial_weights="seed", seed=seed)
        return trainer.loop.client, trainer.loop.server.initial

    (one, first), (other, second), (_, third) = begun(1), begun(2), begun(1)
    assert first.keys() == {"linear.weight", "linear.bias"}
    assert torch.equal(first["linear.weight"], third["linear.weight"])
    assert not torch.equal(first["linear.weight"], second["linear.weight"])
    for client in (one, other):
        assert torch.equal(client.net.base[0].weight, on_a_base().base[0].weight)


def test_users_are_fine_tuned_and_measured_with_the_frozen_part() -> None:
    options = {"rounds": 2, "finetune_lr": 0.1, "finetune_epochs": 1, "extra_metrics": ("global/grad_norm2",)}
    trainer = run(FedBC(on_a_base(), l2=0.1, **LOCAL), **options)
    features = features_of(on_a_base())
    head = Softmax(WIDTH, CLASSES).double()
    head.linear.load_state_dict(on_a_base().linear.state_dict())
    alone = run(FedBC(head, l2=0.1, **LOCAL), features, **options)
    for column in alone.loop.history.columns:
        if not column.startswith("time/"):
            assert trainer.history[column] == pytest.approx(alone.history[column], abs=1e-12, nan_ok=True)


def features_of(net: OnABase) -> TensorData:
    """The tiny data, as the head sees them."""
    data = tiny_data()
    with torch.no_grad():
        data._store["x"] = net.base.eval()(data._store["x"].double())
    return data


def test_memory_estimates_count_what_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    bytes_of_all = 4 * 8 * (WIDTH * CLASSES + CLASSES)
    for most, kept in ((bytes_of_all, True), (bytes_of_all - 1, False)):
        monkeypatch.setattr("fedlit.rounds.assembly.LOCAL_MODELS_BYTES", most)
        trainer = run(FedAvg(on_a_base(), **LOCAL), rounds=1)
        assert any(name.startswith("local.") for name in kept_rows(trainer)) == kept


def test_evaluate_measures_a_run_with_a_frozen_part(tmp_path: Path, call: Call) -> None:
    """Built from its config, it has the base of its folder and not the one that the seed would draw."""
    from fedlit import MLP

    torch.manual_seed(11)
    net = MLP(FEATURES, (6,), CLASSES)
    client = FedAvg(net, train="layers.2", lr=0.1)
    trainer = run(client, rounds=2, run=tmp_path / "run", precision="32-true")
    measured = trainer.test(client)[0]
    restored = Restored.of(tmp_path / "run")
    fresh, data = FedAvg(MLP(FEATURES, (6,), CLASSES), train="layers.2"), tiny_data()
    restored.load_into(fresh, data)
    found, _ = restored.evaluator(fresh, data).global_model(restored.model)
    assert found["global/loss"] == pytest.approx(measured["global/loss"], rel=1e-6)
    assert trained(fresh.net).keys() == {"layers.2.weight", "layers.2.bias"}
    assert all(torch.equal(value, frozen(net)[name]) for name, value in frozen(fresh.net).items())


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    folder_of(tmp_path, on_a_base())
    torch.save({"base.0.weight": torch.zeros(2)}, tmp_path / "checkpoints" / "frozen.pt")
    with pytest.raises(FedlitError, match=r"frozen\.pt does not hold the frozen part"):
        exported(Restored.of(tmp_path))
    (tmp_path / "checkpoints" / "frozen.pt").write_bytes(b"nothing")
    with pytest.raises(FedlitError, match=r"frozen\.pt, the frozen part of the net, cannot be read"):
        exported(Restored.of(tmp_path))
