"""An algorithm from its description: what a server tells its nodes of `model` in the config."""

from collections.abc import Collection, Iterator
from typing import Any

from fedlit import import_all
from fedlit.client.base import Client
from fedlit.config.fit_cli import Parser, plain_refusals
from fedlit.errors import MessageError

KNOWN = ("fedlit.", "torch.nn.")
"""Packages whose classes a node makes; its owner may allow more."""
_READS_FILES = "init_from"


def described_model(config: dict[str, Any]) -> dict[str, Any]:
    """What nodes are told of the `model` of a resolved config; the initial weights come with the first model."""
    options = {name: value for name, value in config["init_args"].items() if name != _READS_FILES}
    return {"class_path": config["class_path"], "init_args": options}


def made_from_description(description: dict[str, Any], allowed: Collection[str] = ()) -> Client:
    """The algorithm, on a node; MessageError for a class that is not installed, or is not allowed here.

    Args:
        description: from a server.
        allowed: packages besides fedlit and torch.nn whose classes may be made.
    """
    check_classes(description, [*KNOWN, *(f"{package}." for package in allowed)])
    import_all()
    parser = Parser(prog="fedlit flower node", default_env=False)
    parser.configs = {}
    parser.add_lightning_class_args(Client, "model", subclass_mode=True, required=True)
    with plain_refusals():
        client = parser.instantiate(parser.parse_object({"model": description})).model
    assert isinstance(client, Client)
    return client


def check_classes(description: object, known: Collection[str]) -> None:
    """MessageError if a class of the description is from another package, or it reads a file of this machine."""
    for key, value in entries_of(description):
        if key == "class_path" and not str(value).startswith(tuple(known)):
            package = str(value).partition(".")[0]
            raise MessageError(
                f"was asked to make a {str(value)[:100]}, and makes only classes of {', '.join(known)}. If you trust "
                f"the package, install it there and start the node with --allow {package[:50]}"
            )
        if key == _READS_FILES and value is not None:
            raise MessageError(f"was asked to read the file {str(value)[:100]}, which no server may")


def entries_of(value: object) -> Iterator[tuple[str, object]]:
    """All keys with their values, however deep."""
    if isinstance(value, dict):
        for key, entry in value.items():
            yield str(key), entry
            yield from entries_of(entry)
    elif isinstance(value, list):
        for entry in value:
            yield from entries_of(entry)
