"""Node: one client, with its own data and its rows in files. It answers the messages of a server.

What it sends is what the algorithm declares, and sums of measures over its own tests. Samples never leave it.
"""

import logging
from collections.abc import Callable
from pathlib import Path

import torch

from fedlit.client.base import Client
from fedlit.client.messages import Message
from fedlit.data.base import FederatedDataModule
from fedlit.data.one_client import one_client
from fedlit.engines.base import threads
from fedlit.errors import FedlitError, MessageError
from fedlit.inputs import stored
from fedlit.remote.node_run import NodeRun
from fedlit.remote.run_plan import RunPlan

log = logging.getLogger("fedlit")

MakeClient = Callable[[Message], Client]
"""Makes the algorithm of a run from its description (`RunPlan.model`)."""


class Node:
    """One client of a federation.

    Args:
        name: by which servers know it; its rows belong to it.
        data: its data, with one client.
        folder: where its rows are kept, a folder for each run.
        make_client: makes the algorithm of a run; it refuses a class that is not installed here.
    """

    def __init__(self, name: str, data: FederatedDataModule, folder: Path, make_client: MakeClient) -> None:
        self.name = name
        self.data = data
        self.folder = folder
        self.make_client = make_client
        self.run: NodeRun | None = None

    def answer(self, message: Message) -> Message:
        """The answer to a message; one with `failed` says why there is no other."""
        try:
            return self._answer(message)
        except FedlitError as error:
            return self._failed(str(error))
        except Exception as error:
            log.exception("A message could not be answered.")
            return self._failed(f"failed ({type(error).__name__}: {error})")

    def _failed(self, why: str) -> Message:
        log.warning(why)
        return {"failed": why}

    def _answer(self, message: Message) -> Message:
        kind = message.get("kind")
        if kind == "hello":
            return self.hello()
        if "plan" in message:
            self.begin(RunPlan.of(message["plan"]))
        if self.run is None or self.run.plan.run != message.get("run"):
            return {"unknown_run": True}
        plan, answers = self.run.plan, {"train": self.run.train, "evaluate": self.run.evaluate, "score": self.run.score}
        if kind in answers:
            with threads(plan.threads if kind == "train" else plan.evaluation_threads):
                return answers[kind](message)
        raise MessageError(f"got a message of the kind {kind!r}, which this version of fedlit does not know")

    def begin(self, plan: RunPlan) -> None:
        """Take part in a run, as the client with the number that the plan says."""
        if not plan.run.isalnum():  # it names a folder
            raise MessageError(f"got a run with the name {plan.run!r}")
        client = self.make_client(plan.model)
        data = one_client(self.data, 0, plan.client, plan.clients)
        self.run = NodeRun(plan, client, data, self.folder / plan.run)

    def hello(self) -> Message:
        """What the server must know of the data: how many samples there are, and their form. No sample is told."""
        data = self.data
        everyone = data.everyone
        x, y = data.rows(data.store, torch.zeros(1, dtype=torch.int64))
        form = {name: values[:1].new_zeros(values[:1].shape) for name, values in {**stored(x), "y": y}.items()}
        return {
            "name": self.name,
            "sizes": {part: int(getattr(everyone, part).sizes[0]) for part in ("train", "val", "test", "adapt")},
            "group": everyone.groups[0],
            "form": form,
            "classes": data.num_classes,
        }
