"""Adapters of a net of `peft`, as files that peft reads: adapter_config.json and adapter_model.safetensors.

A run writes the configuration into its folder when it begins, because its net is not there when it is exported.
"""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from fedlit.errors import ConfigError
from fedlit.files import write_bytes
from fedlit.params import Params
from fedlit.results.folder import RunFolder

ADAPTER = "default"
"""The adapter's name, which peft gives it unless it is told otherwise."""
_COPIES = "modules_to_save"
"""What peft calls a whole layer that is trained beside the adapter, such as a new head."""


def check_not_merged(net: nn.Module) -> None:
    """Refuse a net whose adapters are added to the frozen weights already."""
    merged = next((name for name, layer in net.named_modules() if getattr(layer, "merged_adapters", None)), None)
    if merged is not None:
        raise ConfigError(
            f"model.net ({type(net).__name__}) has merged adapters (in '{merged}'): they are added to the frozen "
            "weights, and training would not change what the net computes. Call unmerge_adapter() of the net first."
        )


def write_config(folder: RunFolder, net: nn.Module) -> None:
    """Write adapter_config.json into the run's folder, if the net is one of peft."""
    configs = getattr(net, "peft_config", None)
    if isinstance(configs, Mapping) and ADAPTER in configs:
        configs[ADAPTER].save_pretrained(str(folder.path))


def write(folder: RunFolder, out: Path, model: Params) -> None:
    """Write a model's adapter into a folder of its own, for `peft.PeftModel.from_pretrained(net, folder)`."""
    try:
        from safetensors.torch import save  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        raise ConfigError(
            "The net of this run has adapters of peft, and writing them needs the package safetensors, which is not "
            "installed: pip install fedlit[peft]."
        ) from error
    out.mkdir(parents=True, exist_ok=True)
    write_bytes(out / folder.adapter.name, folder.adapter.read_bytes())
    write_bytes(out / "adapter_model.safetensors", save(adapter_of(model), {"format": "pt"}))


def adapter_of(model: Mapping[str, Tensor]) -> Params:
    """A model's adapter under the names of peft's files, which are those of the net without the adapter's name."""
    return {
        ".".join(word for word in name.split(".") if word not in (ADAPTER, _COPIES)): value.contiguous()
        for name, value in model.items()
        if ADAPTER in name.split(".")
    }
