"""NodeLoop: the common part of the loops of server and client processes, which measure and write nothing."""

import math
from dataclasses import replace

import torch
from pytorch_lightning import Trainer

from fedlit.client.cohort import WeighedCohort
from fedlit.engines.choose import Request
from fedlit.evaluation.round_evaluator import EvaluationOptions
from fedlit.params import clone
from fedlit.rounds.gathering import RoundOptions
from fedlit.rounds.loop import FederatedLoop
from fedlit.rounds.nodes.messages import Wire
from fedlit.rounds.nodes.plan import NodeProcess, Plan
from fedlit.rounds.protocol import ServerRecords
from fedlit.rounds.round import Round, Stopwatch
from fedlit.rounds.run_state import RoundRecord

ONE_BY_ONE = Request(engine="sequential")
"""A process trains its clients one after the other; the processes run in parallel."""


class NodeRound(Round):
    """A round without measurements, which the coordinator makes."""

    def measure(
        self, number: int, cohort: WeighedCohort | None, watch: Stopwatch | None, servers: ServerRecords, *, due: bool
    ) -> RoundRecord:
        """Only the model, which the client's net holds after a round."""
        return RoundRecord({}, global_model=clone(self.parts.protocol.global_model))


class NodeLoop(FederatedLoop):
    """A loop that runs until the coordinator ends its process.

    Args:
        trainer: as for FederatedLoop, and so are `rounds`, `options` and `measures`.
        part: which process this is.
        plan: all processes of the run.
        wire: sends messages to them.
    """

    round_class = NodeRound

    def __init__(
        self,
        trainer: Trainer,
        rounds: int,
        options: RoundOptions,
        measures: EvaluationOptions | None = None,
        *,
        part: NodeProcess,
        plan: Plan,
        wire: Wire,
    ) -> None:
        # The coordinator sees all risks, and keeps what clients keep.
        changed = replace(options, request=ONE_BY_ONE, divergence_factor=math.inf, states="memory")
        super().__init__(trainer, rounds, changed, measures)
        self.part = part
        self.plan = plan
        self.wire = wire

    @property
    def done(self) -> bool:
        """Always False: the coordinator ends this process."""
        return False

    def setup_data(self) -> None:
        """As in the base, with one thread: the processes run in parallel."""
        super().setup_data()
        torch.set_num_threads(1)

    def is_due(self, number: int) -> bool:
        """Always False: the coordinator measures."""
        return False
