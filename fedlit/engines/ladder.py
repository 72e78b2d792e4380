"""The ladder of compiled training: if one form is not available, the next is tried, and a line says why.

fedlit's own loops need private names of torch's compiler, all programs need a C++ compiler, eager steps need neither.
All give the same numbers up to rounding (1e-10 in float64). A run's form is recorded in its choice; a resumed run uses
the same form, or fails with an error.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from fedlit.client.base import Client
from fedlit.client.cohort import TrainedCohort
from fedlit.client.step import Phase
from fedlit.engines.base import Engine, Solved, TrainData
from fedlit.engines.compiler import CompilerError
from fedlit.engines.engine_choice import EngineChoice
from fedlit.errors import ResumeError
from fedlit.ranks import Ranks

log = logging.getLogger("fedlit")


class Rung(NamedTuple):
    """One form of the training."""

    name: str
    cost: str
    """How much slower it is than the rung above (docs/performance.md)."""
    of: Callable[[EngineChoice], EngineChoice]
    """A choice of the rung above -> the choice of this one."""


def _inductors(choice: EngineChoice) -> EngineChoice:
    return replace(choice, loops="inductor", convolution="torch")


def _eager(choice: EngineChoice) -> EngineChoice:
    """All lanes in one worker: eager workers take turns, and one pass with more lanes is faster."""
    lanes = choice.lanes * choice.workers if choice.lanes > 1 else 1  # a net that has one lane may have no more
    return replace(choice, compiled=False, loops="lean", compiles="loop", convolution="torch", lanes=lanes, workers=1)


RUNGS = (
    Rung("programs with fedlit's own loops", "", lambda choice: choice),
    Rung("programs as torch's compiler writes them", "about 2 times slower", _inductors),
    Rung("eager steps", "about 25 times slower again on the smallest networks and 4 on larger ones", _eager),
)


def rung_of(choice: EngineChoice) -> int:
    """The index of a choice's rung."""
    return 2 if not choice.compiled else 1 if choice.loops == "inductor" else 0


class Ladder(Engine):
    """Trains by the highest rung, from a choice downwards, that is available on every rank.

    Args:
        choice: the first one to try.
        make: the engine of a choice.
        ranks: the processes of the run, which agree on a rung.
        note: called with each new choice.
        is_resumed: whether the run was trained by this choice so far; another would not give the same bits.
    """

    def __init__(
        self,
        choice: EngineChoice,
        make: Callable[[EngineChoice], Engine],
        ranks: Ranks,
        note: Callable[[EngineChoice], None],
        *,
        is_resumed: bool,
    ) -> None:
        self.engine = make(choice)
        super().__init__(self.engine.seed, self.engine.rows)
        self.choice, self.make, self.ranks, self.note = choice, make, ranks, note
        self.is_resumed = is_resumed
        self._prepared: set[Phase] = set()

    def prepare(self, client: Client, cohort: TrainedCohort, data: TrainData, phase: Phase) -> None:
        """Prepare the phase's program; as long as a rank fails, go one rung down, for all phases."""
        why = self._fails(client, cohort, data, phase)
        while why is not None:
            self._step_down(why)
            why = self._fails(client, cohort, data, phase)
        self._prepared.add(phase)

    def train(self, client: Client, cohort: TrainedCohort, data: TrainData, phase: Phase) -> Solved:
        """One local solve of every client."""
        if phase not in self._prepared:
            self.prepare(client, cohort, data, phase)
        return self.engine.train(client, cohort, data, phase)

    def _fails(self, client: Client, cohort: TrainedCohort, data: TrainData, phase: Phase) -> str | None:
        """Why the program is not available on some rank, or None."""
        why = None
        try:
            self.engine.prepare(client, cohort, data, phase)
        except CompilerError as error:
            why = str(error)
            log.debug("the compiler's full error:", exc_info=error)
        return next((word for word in self.ranks.all_gather(why) if word is not None), None)

    def _step_down(self, why: str) -> None:
        index = rung_of(self.choice)
        here, below = RUNGS[index], RUNGS[index + 1]
        if self.is_resumed:
            raise ResumeError(
                f"The run to resume used {here.name}, which cannot be had here ({why}), and {below.name} would not "
                "give the same bits. Resume it with the torch and the C++ compiler that it began with, or start anew "
                "in another folder (--run DIR)."
            )
        if self.ranks.is_first:
            log.warning(f"engine: {here.name} cannot be had ({why}). It goes on with {below.name}, {below.cost}.")
        self.choice = replace(below.of(self.choice), why=f"{here.name} cannot be had: {why}")
        self.note(self.choice)
        self.engine = self.make(self.choice)
        self._prepared.clear()
