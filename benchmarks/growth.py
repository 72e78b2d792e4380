"""How cost grows: one small work of which one thing is varied at a time, everything else as in `BASE`."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from benchmarks.workloads import Workload
from fedlit.models import MLP

FEATURES, CLASSES, BATCH, ROWS = 60, 10, 10, 20


@dataclass(frozen=True)
class Point:
    """The four things that are varied."""

    cohort: int = 10
    hidden: int = 20
    epochs: int = 5
    clients: int = 1000

    @property
    def steps(self) -> int:
        """Local steps of a client in a round."""
        return self.epochs * -(-ROWS // BATCH)

    @property
    def parameters(self) -> int:
        """Of the net."""
        return (FEATURES + 1) * self.hidden + (self.hidden + 1) * CLASSES

    @property
    def name(self) -> str:
        """Of its workload."""
        return f"growth {self.cohort}/{self.hidden}/{self.steps}/{self.clients}"

    def workload(self) -> Workload:
        """FedAvg on clients of equal size."""
        return Workload(
            name=self.name,
            title=f"MLP {FEATURES}-{self.hidden}-{CLASSES}, {self.clients:,} clients of {ROWS}, "
            f"{self.cohort:,} a round, E = {self.epochs}, batch {BATCH}",
            net=partial(MLP, FEATURES, (self.hidden,), CLASSES),
            sample_shape=(FEATURES,),
            sizes=(ROWS,) * self.clients,
            batch_size=BATCH,
            local_epochs=self.epochs,
            clients_per_round=self.cohort,
            with_one_worker=False,
        )


@dataclass(frozen=True)
class Family:
    """Points that differ in one thing."""

    varied: str
    """For people."""
    value: Callable[[Point], int]
    points: tuple[Point, ...]


BASE = Point()
FAMILIES = (
    Family(
        "clients in a round",
        lambda point: point.cohort,
        tuple(replace(BASE, cohort=cohort) for cohort in (10, 30, 100, 300, 1000)),
    ),
    Family(
        "parameters of the net",
        lambda point: point.parameters,
        tuple(replace(BASE, hidden=hidden) for hidden in (20, 80, 320, 1280, 5120)),
    ),
    Family(
        "local steps of a client",
        lambda point: point.steps,
        tuple(replace(BASE, epochs=epochs) for epochs in (1, 5, 15, 50, 150)),
    ),
    Family(
        "clients in all",
        lambda point: point.clients,
        tuple(replace(BASE, clients=clients) for clients in (100, 1000, 10_000, 100_000)),
    ),
)
GROWTH = {point.name: point.workload() for family in FAMILIES for point in family.points}
"""What `python -m benchmarks --growth` measures; the base belongs to every family and is measured once."""
