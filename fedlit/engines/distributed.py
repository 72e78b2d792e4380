"""Any engine in several processes: each trains its part of a cohort, and all get all rows, in the cohort's order.

Rows are gathered and not summed: everything after an engine runs on every rank with the same inputs, so no algorithm,
weighting or callback needs a second form. The limit is a cohort whose rows do not fit into one process.
"""

from dataclasses import dataclass, replace

from fedlit.client.base import Client
from fedlit.client.cohort import TrainedCohort
from fedlit.client.step import Phase
from fedlit.engines.base import Engine, Pieces, Solved, Store, TrainData, Vary
from fedlit.params import Params
from fedlit.ranks import Ranks


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

    def prepare(self, client: Client, cohort: TrainedCohort, data: TrainData, phase: Phase) -> None:
        """Prepare on every rank, also on one without clients in the first round."""
        self.engine.prepare(client, cohort, data, phase)

    def train(self, client: Client, cohort: TrainedCohort, data: TrainData, phase: Phase) -> Solved:
        """Train this rank's part; the result has the clients of all ranks."""

        def solved_part(rows: list[int]) -> Params:
            part = DataPart(data.store, data.train.of_clients(rows), data.vary, data.largest)
            return self.engine.train(client, cohort.take(rows), part, phase).flat()

        solved = Solved.from_flat(self.ranks.split_work(cohort.steps.tolist(), solved_part))
        # Rows are exchanged by name; sums over a model's tensors need the net's order for the same bits.
        params = {name: solved.params[name] for name in cohort.received}
        return replace(solved, params=params, buffers={name: solved.buffers[name] for name in cohort.received_buffers})
