"""PartLoop: what the loops of a server's and of a client's process share. They measure and write nothing."""

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
"""Processes train their clients one after the other: what runs at once are the processes."""


class PartRound(Round):
    """A round of which nothing is measured: the coordinator does."""

    def measure(
        self, number: int, cohort: WeighedCohort | None, watch: Stopwatch | None, servers: ServerRecords, *, due: bool
    ) -> RoundRecord:
        """The model alone, which the client's net holds after a round."""
        return RoundRecord({}, global_model=clone(self.parts.protocol.global_model))


class PartLoop(FederatedLoop):
    """A loop without an end of its own.

    Args:
        trainer: as for FederatedLoop, and so are `rounds`, `options` and `measures`.
        part: which process this is.
        plan: all processes.
        wire: the way to them.
    """

    round_class = PartRound

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
        given = replace(options, request=ONE_BY_ONE, divergence_factor=math.inf, states="memory")
        super().__init__(trainer, rounds, given, measures)
        self.part = part
        self.plan = plan
        self.wire = wire

    @property
    def done(self) -> bool:
        """Never: the coordinator ends this process."""
        return False

    def setup_data(self) -> None:
        """One thread: there are as many processes as there are clients to train at once."""
        super().setup_data()
        torch.set_num_threads(1)

    def is_due(self, number: int) -> bool:
        """Never: the coordinator measures."""
        return False
