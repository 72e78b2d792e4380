"""WeightsFile: initial weights of a net from a file, which is a state dict or a checkpoint that holds one.

Tensors are read without running any code in the file (`weights_only`). Names and shapes must be those of the net, or
of one of its modules: loading only a part of a file would go unnoticed. A file may hold a part of the net.
"""

import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor, nn

from fedlit.client.row_layout import read_archive
from fedlit.errors import ConfigError, nearest, require
from fedlit.params import with_prefix
from fedlit.recorded import ReadFromFile, fingerprint_of, require_fingerprint

_HOW = "torch.save(net.state_dict(), 'start.pt') writes such a file, and so does `fedlit export RUN`."


@dataclass(frozen=True)
class WeightsFile(ReadFromFile):
    """Weights to begin with.

    Args:
        file: path of a state dict of the net (of torch.save or safetensors), or of a checkpoint of fedlit or Lightning
        sha256: fingerprint of the file, as config.yaml of a run has it; a file with another one is refused
    """

    file: str
    sha256: str | None = None

    @property
    def path(self) -> Path:
        """Where the file is."""
        return Path(self.file).expanduser()

    def known_by(self) -> dict[str, Any]:
        """The file's name and a fingerprint of its content."""
        return {"file": self.file, "sha256": fingerprint_of(self._content())}

    def load_into(self, net: nn.Module) -> frozenset[str]:
        """Load these weights into the net, or into a part of it; ConfigError if they do not fit.

        Returns the names of the tensors that were loaded.
        """
        content = self._content()
        require_fingerprint(content, self.sha256, f"model.init_from: {self.path}", "sha256")
        weights = state_dict_in(self._tensors(content))
        part = self._part(net, weights)
        weights = with_prefix(part, weights) if part else weights
        self._check(net, weights)
        net.load_state_dict(weights, strict=False)
        return frozenset(weights)

    def _part(self, net: nn.Module, weights: Mapping[str, Tensor]) -> str:
        """The module whose weights the file holds; an empty text for the net itself."""
        known = net.state_dict().keys()
        parts = [name for name, _ in net.named_modules() if known >= {f"{name}.{key}".lstrip(".") for key in weights}]
        require(
            "" in parts or len(parts) < 2,
            f"model.init_from: {self.path} fits several parts of model.net ({type(net).__name__}): "
            f"{', '.join(parts[:4])}. Name its tensors as the net does, such as '{parts[0] if parts else ''}."
            f"{next(iter(weights))}'.",
        )
        return "" if "" in parts or not parts else parts[0]

    def _content(self) -> bytes:
        try:
            return self.path.read_bytes()
        except FileNotFoundError as error:
            raise ConfigError(f"model.init_from: there is no file {self.path}. {_HOW}") from error
        except OSError as error:
            raise ConfigError(f"model.init_from: {self.path} cannot be read ({error.strerror}). {_HOW}") from error

    def _tensors(self, content: bytes) -> Any:
        if self.path.suffix == ".safetensors":
            return self._safetensors(content)
        try:
            if zipfile.is_zipfile(io.BytesIO(content)) and not is_whole(io.BytesIO(content)):
                raise ValueError("a checksum is not that of what was written")
            return read_archive(content)
        except Exception as error:  # on damaged or foreign bytes torch fails in more ways than it documents
            is_archive = zipfile.is_zipfile(io.BytesIO(content))
            more = "it is damaged, or it holds more than tensors, which is never run"
            why = more if is_archive else "it is not an archive that torch.save wrote"
            raise ConfigError(
                f"model.init_from: {self.path} holds no weights that can be read: {why}. {_HOW}"
            ) from error

    def _safetensors(self, content: bytes) -> Any:
        try:
            from safetensors import SafetensorError  # type: ignore[import-not-found,unused-ignore]
            from safetensors.torch import load  # type: ignore[import-not-found,unused-ignore]
        except ImportError as error:
            raise ConfigError(
                f"model.init_from: to read {self.path} needs the package safetensors, which is not installed: pip "
                "install safetensors."
            ) from error
        try:
            return load(content)
        except SafetensorError as error:
            raise ConfigError(
                f"model.init_from: {self.path} holds no weights that can be read: it is damaged, or not of the format "
                "safetensors."
            ) from error

    def _check(self, net: nn.Module, weights: Mapping[str, Tensor]) -> None:
        name, params = type(net).__name__, net.state_dict()
        where = f"model.init_from: {self.path} does not hold the weights of model.net ({name})"
        foreign = [key for key in weights if key not in params]
        if foreign:
            raise ConfigError(
                f"{where}: it has '{foreign[0]}', which the net does not. {nearest(foreign[0], params)}{_HOW}"
            )
        for key, value in weights.items():
            if value.shape != params[key].shape:
                raise ConfigError(
                    f"{where}: '{key}' has shape {tuple(value.shape)} there and {tuple(params[key].shape)} in the net. "
                    "Give the net the options that it was trained with, or another file."
                )
            if not is_plain(value) or value.is_floating_point() != params[key].is_floating_point():
                raise ConfigError(
                    f"{where} that can be used: '{key}' is of {str(value.dtype).removeprefix('torch.')}, sparse, "
                    f"quantized or without values. Save it as plain {str(params[key].dtype).removeprefix('torch.')}."
                )
            if not bool(torch.isfinite(value).all()):
                raise ConfigError(f"{where} that can be used: '{key}' has NaN or infinite values.")


def is_plain(value: Tensor) -> bool:
    """Whether a tensor is dense, real and not quantized."""
    return value.layout == torch.strided and not (value.is_meta or value.is_quantized or value.is_complex())


def is_whole(file: IO[bytes]) -> bool:
    """Whether the archive in a file is as torch.save wrote it: its checksums, which torch.load ignores, and its size.

    torch.save does not compress. A compressed file is refused, since a few kB of it could fill the memory.
    """
    size = file.seek(0, io.SEEK_END)
    with zipfile.ZipFile(file) as archive:
        return sum(entry.file_size for entry in archive.infolist()) <= size and archive.testzip() is None


def state_dict_in(content: Any) -> dict[str, Tensor]:
    """The net's tensors in a state dict, a checkpoint (`state_dict`, prefix `net.`) or best.ckpt (`model`)."""
    state = content
    for key in ("state_dict", "model"):
        if isinstance(state, Mapping) and isinstance(state.get(key), Mapping):
            state = state[key]
    named = {str(name): value for name, value in state.items()} if isinstance(state, Mapping) else {}
    tensors = {name: value for name, value in named.items() if isinstance(value, Tensor)}
    require(
        bool(tensors) and len(tensors) == len(named),
        f"model.init_from: the file holds {type(content).__name__} without a state dict. {_HOW}",
    )
    of_a_client = {name.removeprefix("net."): value for name, value in tensors.items() if name.startswith("net.")}
    return of_a_client if state is not content and of_a_client else tensors
