"""Nets of peft: only the adapter trains, and export writes files from which peft makes the same net."""

import copy
from pathlib import Path
from typing import Any

import fedlit as fedlit  # isort: skip  # first: it lets transformers be imported beside a CPU-only torch

import pytest
import torch
from torch import Tensor, nn

peft = pytest.importorskip("peft", reason="the packages peft and transformers (extra peft) are not installed")

from transformers import BertConfig, BertForSequenceClassification  # noqa: E402

from fedlit import MLP, FedAvg, FedBC, TensorData  # noqa: E402
from fedlit.client.net_parts import trained_params  # noqa: E402
from fedlit.errors import ConfigError  # noqa: E402
from tests.cases import CASES, KINDS, made, slow_but  # noqa: E402
from tests.conftest import Call  # noqa: E402
from tests.problems import CLASSES, FEATURES, kept_rows, largest_difference, run, tiny_data  # noqa: E402

LOCAL: dict[str, Any] = {"lr": 0.1, "batch_size": 8, "local_epochs": 1}
LETTERS, LENGTH = 40, 8


def base() -> nn.Module:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = BertConfig(vocab_size=LETTERS, max_position_embeddings=16, num_labels=CLASSES, **sizes)
    net: nn.Module = BertForSequenceClassification(config)
    return net.double()


def adapted(net: nn.Module | None = None) -> Any:
    config = peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value"])
    return peft.get_peft_model(base() if net is None else net, config)


def texts(*, masked: bool = True) -> TensorData:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(LETTERS, (60, LENGTH), generator=generator)
    mask = (torch.arange(LENGTH) < torch.randint(3, LENGTH + 1, (60, 1), generator=generator)).long()
    x = {"input_ids": ids} | ({"attention_mask": mask} if masked else {})
    return TensorData(x, torch.randint(CLASSES, (60,), generator=generator), torch.arange(60) % 4, num_classes=CLASSES)


def frozen_bits(net: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in net.state_dict().items() if name not in trained_params(net)}


@pytest.mark.usefixtures("few_inner_steps")
@pytest.mark.parametrize("name", slow_but(["FedBC, from its own model", "Per-FedAvg, exact", "SCAFFOLD I"], KINDS))
def test_every_algorithm_trains_the_adapter_alone(name: str) -> None:
    options = {key: value for key, value in CASES[name].trainer.items() if key != "clients_per_round"}
    net = adapted()
    before = frozen_bits(net)
    trainer = run(made(name, net, **LOCAL), texts(), rounds=2, **options)
    assert all("lora" in key or "modules_to_save" in key for key in trainer.loop.server.model)
    after = frozen_bits(trainer.loop.client.net)
    assert all(torch.equal(after[key], value) for key, value in before.items())


def test_engines_agree() -> None:
    """Without a mask, whose values transformers asks for."""
    slow = run(FedBC(adapted(), **LOCAL), texts(masked=False), rounds=2)
    fast = run(FedBC(adapted(), **LOCAL), texts(masked=False), rounds=2, engine="vectorized", compiled=False)
    assert largest_difference(kept_rows(slow), kept_rows(fast)) < 1e-10


def test_export_writes_every_users_adapter_for_peft(tmp_path: Path, call: Call) -> None:
    trainer = run(FedBC(adapted(), **LOCAL), texts(), rounds=2, run=tmp_path / "run")
    assert call(f"export {tmp_path / 'run'} --out {tmp_path / 'out'}").code == 0
    x = texts()._store
    inputs = {"input_ids": x["x.input_ids"], "attention_mask": x["x.attention_mask"]}
    expected = {"global": trainer.loop.client.net}
    expected |= {f"client-{user}": trainer.personal_model(user) for user in trainer.loop.states.touched}
    assert {path.name for path in (tmp_path / "out" / "adapters").iterdir()} == expected.keys()
    outputs = []
    for name, net in expected.items():
        loaded = peft.PeftModel.from_pretrained(base(), tmp_path / "out" / "adapters" / name).double().eval()
        with torch.no_grad():
            assert torch.equal(loaded(**inputs).logits, net.eval()(**inputs).logits)
            outputs.append(loaded(**inputs).logits)
    assert not torch.equal(outputs[1], outputs[2])


def test_merged_weights_are_refused() -> None:
    net = adapted()
    net.merge_adapter()
    with pytest.raises(ConfigError, match=r"has merged adapters \(in '.*query'\).*unmerge_adapter"):
        run(FedAvg(net, **LOCAL), texts())
    net.unmerge_adapter()
    run(FedAvg(net, **LOCAL), texts(), rounds=1)


def test_the_seed_draws_the_adapter_as_peft_does() -> None:
    def begun(seed: int) -> dict[str, Tensor]:
        torch.manual_seed(4)
        net = peft.get_peft_model(MLP(FEATURES, (6,), CLASSES), peft.LoraConfig(r=2, target_modules=["layers.0"]))
        trainer = run(FedAvg(net, **LOCAL), tiny_data(), rounds=1, initial_weights="seed", seed=seed)
        initial: dict[str, Tensor] = trainer.loop.server.initial
        return initial

    first, second, third = begun(1), begun(1), begun(2)
    assert largest_difference(first, second) == 0
    (a, b) = first
    assert "lora_A" in a
    assert not torch.equal(first[a], third[a])
    assert not first[b].any()


def test_a_file_of_safetensors_gives_the_weights(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    state = copy.deepcopy(MLP(FEATURES, (6,), CLASSES).state_dict())
    save_file(state, tmp_path / "start.safetensors")
    client = FedAvg(MLP(FEATURES, (6,), CLASSES), init_from=str(tmp_path / "start.safetensors"), train="layers.2")
    trainer = run(client, tiny_data(), rounds=1, precision="32-true")
    assert torch.equal(trainer.loop.client.net.layers[0].weight, state["layers.0.weight"])
    assert torch.equal(trainer.loop.server.initial["layers.2.weight"], state["layers.2.weight"])
    (tmp_path / "start.safetensors").write_bytes(b"nothing at all")
    with pytest.raises(ConfigError, match="it is damaged, or not of the format"):
        run(FedAvg(MLP(FEATURES, (6,), CLASSES), init_from=str(tmp_path / "start.safetensors")), tiny_data())
