"""What is refused before a federation is repeated from its events: another run, other clients, more rounds."""

from collections.abc import Mapping
from typing import Any

from fedlit.data.base import FederatedDataModule
from fedlit.errors import ConfigError, DataError, require
from fedlit.remote.told_data import PARTS
from fedlit.results.config_file import canonical, flatten, result_settings
from fedlit.results.events import Events


def check_settings(events: Events, config: Mapping[str, Any], rounds: int) -> None:
    """ConfigError unless the events belong to a run of this config that had so many rounds.

    Args:
        events: of the federation.
        config: the complete config of this run.
        rounds: how many it has.
    """
    then, now = (flatten(settings) for settings in (events.recorded.settings, result_settings(config)))
    changed = [name for name in sorted(then | now) if canonical(then.get(name)) != canonical(now.get(name))]
    if changed:
        shown = "; ".join(f"{name} was {then.get(name)}, is {now.get(name)}" for name in changed[:3])
        more = f" (and {len(changed) - 3} more)" if len(changed) > 3 else ""
        raise ConfigError(
            f"--replay {events.path} has what happened in a run with other settings: "
            f"{shown.replace('.init_args', '')}{more}. Give the config and the options of that run; they are in the "
            "config.yaml beside its events."
        )
    require(
        rounds <= events.last,
        f"trainer.rounds is {rounds}, but --replay {events.path} has {events.last} rounds. Give --trainer.rounds "
        f"{events.last} or less.",
    )


def check_clients(events: Events, data: FederatedDataModule) -> None:
    """DataError unless the data, which are set up, have the clients that the federation had, as far as sizes say."""
    recorded, everyone = events.recorded.clients, data.everyone
    sizes = zip(*(getattr(everyone, part).sizes.tolist() for part in PARTS), strict=True)
    here = [list(own) for own in sizes]
    if len(recorded) != len(here):
        raise DataError(
            f"--replay {events.path} is of a federation of {len(recorded)} clients, but these data have {len(here)}. "
            "Give the data that its nodes had."
        )
    for client, (name, then) in enumerate(recorded.items()):
        if list(then) != here[client]:
            texts = [
                ", ".join(f"{part} {n}" for part, n in zip(PARTS, own, strict=True)) for own in (then, here[client])
            ]
            raise DataError(
                f"--replay {events.path} is of a federation whose {name} had other samples than client {client} has "
                f"here: {texts[0]}; here {texts[1]}. Give the data that its nodes had."
            )
