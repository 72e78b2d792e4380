"""Flower: its `FedAvg` in its simulation runtime on Ray, one client at a time on each core.

Written as a Flower app: a ServerApp, and a ClientApp that Ray's processes import from this file. A client trains as the
hand-written loop does. The simulation runs as a whole in a thread; its server waits for the rounds that are asked for.
"""

import logging
import os
import threading
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from queue import Queue
from typing import Any

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}  # both are read at import

import flwr  # noqa: E402
import numpy as np  # noqa: E402
import ray  # noqa: E402
import torch  # noqa: E402
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402
from flwr.serverapp import Grid, ServerApp  # noqa: E402
from flwr.serverapp.strategy import FedAvg  # noqa: E402
from flwr.simulation import run_simulation  # noqa: E402
from serve import Work  # noqa: E402
from torch_net import Net, laid_out  # noqa: E402
from torch_net import train as by_hand  # noqa: E402

# ---- in Ray's processes ----------------------------------------------------------------------------------------------

client_app = ClientApp()


@client_app.query()  # type: ignore[untyped-decorator]  # Flower is not installed where this is checked
def own_number(message: Message, context: Context) -> Message:
    """Which client a node is."""
    return Message(
        RecordDict({"node": MetricRecord({"client": context.node_config["partition-id"]})}), reply_to=message
    )


@client_app.train()  # type: ignore[untyped-decorator]
def train(message: Message, context: Context) -> Message:
    """A client's local training."""
    work, net, data = opened(str(message.content["config"]["folder"]))
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    rows = torch.from_numpy(work.clients[int(context.node_config["partition-id"])])
    by_hand(net, work, data, rows)
    content = {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord({"num-examples": len(rows)})}
    return Message(RecordDict(content), reply_to=message)


@cache
def opened(folder: str) -> tuple[Work, Net, tuple[torch.Tensor, torch.Tensor]]:
    """The data and a network, once in each process."""
    torch.set_num_threads(1)
    work = Work(Path(folder))
    return work, Net(work.layers, work.weights), (laid_out(torch.from_numpy(work.x)), torch.from_numpy(work.y))


# ---- in the first process --------------------------------------------------------------------------------------------

END: Sequence[int] = ()
"""In place of a cohort: no more rounds."""


class Peer:
    """The server, and the thread in which the simulation runs."""

    version = f"Flower {flwr.__version__}, Ray {ray.__version__}, torch {torch.__version__}"
    threads = 1

    def __init__(self, work: Work) -> None:
        self.work, self.processes = work, min(work.cores, len(work.cohorts[0]))
        self.net = Net(work.layers, work.weights)
        self.arrays = ArrayRecord(self.net.state_dict())
        self.asked: Queue[Sequence[int]] = Queue()
        self.done: Queue[BaseException | None] = Queue()
        logging.getLogger("flwr").setLevel(logging.ERROR)
        threading.Thread(target=self.simulate).start()
        # atexit would come too late: Python waits for the simulation's threads first.
        threading._register_atexit(self.asked.put, END)  # type: ignore[attr-defined]

    def start(self, weights: Sequence[np.ndarray]) -> None:
        """The first weights again."""
        self.arrays = ArrayRecord(Net(self.work.layers, weights).state_dict())

    def round(self, cohort: Sequence[int]) -> int:
        """One round, or what went wrong."""
        self.asked.put(cohort)
        failed = self.done.get()
        if failed is not None:
            raise failed
        return sum(self.work.steps_of(client) for client in cohort)

    def weights(self) -> list[np.ndarray]:
        """The server's."""
        self.net.load_state_dict(self.arrays.to_torch_state_dict())
        return [p.detach().numpy() for p in self.net.parameters()]

    def simulate(self) -> None:
        """The whole simulation."""
        server_app = ServerApp()
        server_app.main()(self.serve)
        resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}  # Ray takes all cores
        try:
            run_simulation(server_app, client_app, len(self.work.clients), backend_config=resources)
        except BaseException as error:
            self.done.put(error)

    def serve(self, grid: Grid, context: Context) -> None:
        """Flower's server: a round whenever one is asked for, until the program ends."""
        strategy = GivenCohorts(nodes_of(grid, len(self.work.clients)))
        config = ConfigRecord({"folder": str(self.work.folder)})
        for strategy.cohort in iter(self.asked.get, END):
            self.arrays = strategy.start(grid, self.arrays, num_rounds=1, train_config=config).arrays
            self.done.put(None)


class GivenCohorts(FedAvg):  # type: ignore[misc]
    """FedAvg, weighted by samples and without evaluation, that trains those whom it is told to."""

    cohort: Sequence[int] = ()

    def __init__(self, nodes: dict[int, int]) -> None:
        super().__init__(fraction_evaluate=0.0)
        self.nodes = nodes

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The same message to each of the cohort."""
        content = RecordDict({"arrays": arrays, "config": config})
        return [Message(content, self.nodes[client], MessageType.TRAIN) for client in self.cohort]

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        """Flower goes on without those who failed; here everybody counts."""
        replies = list(replies)
        for failed in (reply for reply in replies if reply.has_error()):
            raise RuntimeError(failed.error.reason)
        return super().aggregate_train(server_round, replies)


def nodes_of(grid: Grid, clients: int) -> dict[int, int]:
    """Each client's node, whose number Flower draws."""
    nodes: list[int] = []
    while len(nodes) < clients:  # they are registered while the server starts
        nodes = list(grid.get_node_ids())
    replies = grid.send_and_receive([Message(RecordDict(), node, MessageType.QUERY) for node in nodes])
    return {int(reply.content["node"]["client"]): reply.metadata.src_node_id for reply in replies}
