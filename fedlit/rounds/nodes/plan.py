"""The processes of a run: the coordinator has rank 0, then follow the servers and the client processes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedlit.client.base import Client
from fedlit.data.base import FederatedDataModule
from fedlit.errors import require
from fedlit.rounds.gathering import RoundOptions

COORDINATOR = 0


@dataclass(frozen=True)
class NodeProcess:
    """A process of a server or of clients."""

    rank: int
    server: int
    """The id of its server: a server's process is that server, a client process works for it."""
    worker: int | None = None
    """Its number among the client processes; None for a server."""
    clients: tuple[int, ...] = ()
    """Ids of the clients that it trains; empty for a server."""

    @property
    def name(self) -> str:
        """Its name in log lines and errors."""
        return f"Server {self.server}" if self.worker is None else f"Client process {self.worker}"


@dataclass(frozen=True)
class Plan:
    """All processes of a run.

    Args:
        parts: all processes but the coordinator.
        pace: whether events follow the simulated clock (replay) or real times (real).
        timeout: seconds to wait for a message of a process before the run fails.
    """

    parts: tuple[NodeProcess, ...]
    pace: str
    timeout: float

    @property
    def size(self) -> int:
        """Number of processes, including the coordinator."""
        return len(self.parts) + 1

    def line(self) -> str:
        """A line for the log."""
        servers = sum(part.worker is None for part in self.parts)
        return (
            f"processes: 1 coordinator, {servers} of servers, {len(self.parts) - servers} of clients; pace: {self.pace}"
        )

    def part(self, rank: int) -> NodeProcess:
        """The process of a rank."""
        return self.parts[rank - 1]

    def rank_of(self, server: int) -> int:
        """The rank of a server."""
        return next(part.rank for part in self.parts if part.worker is None and part.server == server)

    def workers_of(self, server: int) -> list[NodeProcess]:
        """The client processes of a server."""
        return [part for part in self.parts if part.worker is not None and part.server == server]


def divide(members: Sequence[Sequence[int]], workers: int) -> tuple[NodeProcess, ...]:
    """All processes: each server gets a block of client processes, and each of these a block of its clients."""
    servers = len(members)
    parts = [NodeProcess(COORDINATOR + 1 + server, server) for server in range(servers)]
    for server, numbers in enumerate(np.array_split(np.arange(workers), servers)):
        blocks = np.array_split(np.asarray(members[server]), len(numbers))
        for worker, clients in zip(numbers.tolist(), blocks, strict=True):
            parts.append(NodeProcess(COORDINATOR + 1 + servers + worker, server, worker, tuple(clients.tolist())))
    return tuple(parts)


def members_of(data: FederatedDataModule, options: RoundOptions) -> list[list[int]]:
    """The clients of each server."""
    if options.cloud is None:
        return [list(range(data.num_clients))]
    groups = data.load(0, range(data.num_clients)).groups
    return [ids.tolist() for ids in options.cloud.clients_of(data.num_clients, groups, options.seed)]


def check_counts(servers: int | None, workers: int | None, members: Sequence[Sequence[int]]) -> int:
    """The number of client processes; ConfigError where the counts do not fit the config. The data are set up."""
    there = len(members)
    where = (
        "trainer.cloud.servers is" if there > 1 else "the config has no trainer.cloud with several servers: there is"
    )
    require(
        servers is None or servers == there,
        f"--servers is {servers}, but {where} {there}. Leave --servers out, or give --trainer.cloud.servers {servers}.",
    )
    count = there if workers is None else workers
    require(
        count >= there,
        f"--clients is {count}, but there are {there} servers, and each needs a client process of its own. Give "
        f"{there} or more.",
    )
    for server, (clients, numbers) in enumerate(zip(members, np.array_split(np.arange(count), there), strict=True)):
        require(
            len(numbers) <= len(clients),
            f"--clients is {count}, which gives server {server} {len(numbers)} client processes, but it has only "
            f"{len(clients)} clients. Give {there * min(map(len, members))} or fewer, or make more clients "
            "(data.num_clients).",
        )
    return count


def check_options(client: Client, data: FederatedDataModule, options: RoundOptions, pace: str) -> None:
    """Refuse options that processes do not support."""
    request, clock = options.request, options.clock
    require(
        options.buffer is None,
        "trainer.buffer is a server that does not wait for its clients, which is simulated. Use fedlit fit, or leave "
        "the buffer out.",
    )
    what = "pools everybody's data" if client.pools_data else "draws new clients every round (data.fresh)"
    require(
        not (client.pools_data or data.is_fresh),
        f"fedlit cloud divides clients among processes, but this run {what}. Use fedlit fit.",
    )
    require(
        data.newcomer_data is None,
        f"data.newcomers is {data.newcomers}, but the processes of fedlit cloud train users alone. Use fedlit fit, or "
        "leave it out.",
    )
    unused = [name for name in ("lanes", "workers", "compiled") if getattr(request, name) is not None]
    option = unused[0] if unused else "engine"
    require(
        request.engine != "vectorized" and not unused,
        f"trainer.{option} is {getattr(request, option)}, but "
        "each client process trains its clients one after the other, and only processes run in parallel. Leave it "
        "out, and give more --clients.",
    )
    timed = clock is not None and (clock.deadline is not None or clock.dropout > 0)
    require(
        pace != "real" or not timed,
        "trainer.clock has a deadline or dropout, which are simulated, but --pace real follows the real times. "
        "Leave them out, or give --pace replay.",
    )
