"""Any engine in several processes: each trains its part of a cohort, and all of them get all rows, in its order.

Rows are gathered and not summed, on purpose: everything after an engine runs on every rank with the same inputs, so no
algorithm, weighting or callback needs a second form. That ends where a cohort's rows do not fit into one process.
"""

from dataclasses import dataclass

from fedlit.client import Client
from fedlit.cohort import Cohort
from fedlit.engines.base import Engine, Pieces, Store, TrainData, Vary
from fedlit.params import Params, under_prefix, with_prefix
from fedlit.ranks import Ranks
from fedlit.step import Phase, state_name


@dataclass(frozen=True)
class DataPart:
    """The data of some clients of a cohort."""

    store: Store
    train: Pieces
    vary: Vary | None
    largest: int | None


class DistributedEngine(Engine):
    """Divides a cohort by its clients' steps, the longest first.

    Args:
        engine: what trains a rank's part.
        ranks: the processes of the run.
    """

    def __init__(self, engine: Engine, ranks: Ranks) -> None:
        super().__init__(engine.seed, engine.rows)
        self.engine = engine
        self.ranks = engine.ranks = ranks

    def prepare(self, client: Client, cohort: Cohort, data: TrainData, phase: Phase) -> None:
        """On every rank, whoever trains in the first round."""
        self.engine.prepare(client, cohort, data, phase)

    def train(self, client: Client, cohort: Cohort, data: TrainData, phase: Phase) -> Cohort:
        """All that an engine fills, for the clients of all ranks."""

        def trained_part(rows: list[int]) -> Params:
            part = cohort.part(rows)
            own = DataPart(data.store, data.train.of_clients(rows), data.vary, data.largest)
            return filled(client, self.engine.train(client, part, own, phase))

        fill(cohort, self.ranks.split_work(cohort.steps.tolist(), trained_part))
        return cohort


def filled(client: Client, cohort: Cohort) -> Params:
    """Stacked: all that an engine has written into a cohort."""
    carried = [state_name(name) for name in client.carried_rows(cohort)]
    return {
        **with_prefix("params", cohort.params),
        **with_prefix("buffers", cohort.buffers),
        **with_prefix("memory", cohort.memory),
        **with_prefix("state", {name: cohort.state[name] for name in carried}),
        "losses": cohort.losses,
    }


def fill(cohort: Cohort, trained: Params) -> None:
    """The inverse: write it into another cohort of the same clients."""
    cohort.params, cohort.buffers = under_prefix("params", trained), under_prefix("buffers", trained)
    cohort.memory, cohort.losses = under_prefix("memory", trained), trained["losses"]
    cohort.state |= under_prefix("state", trained)
