"""The training of a round: the clients of all servers that are due train together; risks are measured if needed."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedlit.client.base import Client
from fedlit.client.cohort import Cohort, TrainedCohort
from fedlit.client.report import check_kept, complete_report
from fedlit.client.step import Phase
from fedlit.data.base import ClientData, FederatedDataModule
from fedlit.data.pooled import Pooled
from fedlit.engines.base import Engine
from fedlit.errors import located
from fedlit.evaluation.evaluator import Evaluator
from fedlit.evaluation.summaries import has_summary, summaries
from fedlit.params import Params, with_prefix
from fedlit.rounds.gathering import Gatherer


@dataclass(frozen=True)
class LocalTraining:
    """Trains cohorts with the engine; it has no state of its own."""

    client: Client
    population: FederatedDataModule | Pooled
    """The clients and their samples."""
    gatherer: Gatherer
    """Computes how many steps a phase takes."""
    engine: Engine
    """Trains one phase."""
    evaluator: Evaluator
    """Measures risks and gradients."""
    needs: frozenset[str]
    """Which risks and gradients the client, the weighting or a callback needs."""

    def measure_received(self, cohort: Cohort) -> None:
        """Measure risks and gradients of the received models, if they are needed."""
        if not self.needs & {"risk_received", "grad_received"}:
            return
        received, data = cohort.received | cohort.received_buffers, self._data(cohort).train
        if "risk_received" in self.needs:
            cohort.risk_received = self.evaluator.risks(received, data)
        if "grad_received" in self.needs:
            cohort.grad_received = self.evaluator.gradients(received, data)

    def measure_trained(self, cohort: TrainedCohort) -> None:
        """Measure risks of the trained models, if they are needed."""
        if "risk_trained" in self.needs:
            cohort.risk_trained = self.evaluator.risks(cohort.params | cohort.buffers, self._data(cohort).train)

    def train(self, cohorts: Sequence[Cohort]) -> list[TrainedCohort]:
        """Train the clients of all servers; those with the same learning rate train together."""
        trained: dict[int, TrainedCohort] = {}
        for rate in dict.fromkeys(cohort.lr for cohort in cohorts):
            indices = [index for index, cohort in enumerate(cohorts) if cohort.lr == rate]
            alike = [cohorts[index] for index in indices]
            trained |= dict(zip(indices, self._train_together(alike), strict=True))
        return [trained[index] for index in range(len(cohorts))]

    def _train_together(self, cohorts: Sequence[Cohort]) -> list[TrainedCohort]:
        cohort = self.solve(Cohort.join(cohorts), self.client.phases())
        if self.client.report_spec():
            complete_report(self.client, cohort)
        return cohort.split(cohorts)

    def solve(self, gathered: Cohort, phases: Sequence[Phase]) -> TrainedCohort:
        """These local solves of every client, one phase after the other."""
        cohort = TrainedCohort.begin(gathered)
        data = self._data(cohort)
        for phase in phases:
            self.run_phase(cohort, data, phase)
            if has_summary(self.client, phase):
                cohort.summary = summaries(self.evaluator, cohort, phase, data.train)
            self.end_phase(cohort, phase)
        return cohort

    def run_phase(self, cohort: TrainedCohort, data: ClientData, phase: Phase) -> None:
        """One local solve of every client; its result is the model that is sent, or the state that the phase writes."""
        steps = cohort.steps if phase.work_method == "local_work" else self.gatherer.steps(cohort, phase.work_method)
        cohort.steps_taken = cohort.steps_taken + steps
        solved = self.engine.train(self.client, cohort.in_phase(steps, phase.lr), data, phase)
        cohort.state |= solved.carried
        if phase.writes:
            cohort.state |= with_prefix(phase.writes, solved.params)
            return
        cohort.params, cohort.buffers = solved.params, solved.buffers
        if phase.start != "trained":  # a phase that refines a trained model logs no loss
            cohort.losses = solved.losses
        if self.client.keep_optimizer:
            cohort.optimizer_state = solved.optimizer_state

    def end_phase(self, cohort: TrainedCohort, phase: Phase) -> None:
        """Call the client's hook after a phase; clients that have taken no step so far keep their rows."""
        where = f"in round {cohort.run_round}, in on_phase_end of {type(self.client).__name__} ({phase.name})"
        with located(where), cohort.untrained_rows_restored():
            self.client.on_phase_end(cohort, phase)
            check_kept(self.client, cohort)
        cohort.parts.pop("summary", None)

    def _data(self, cohort: Cohort) -> ClientData:
        return self.population.load(cohort.round, cohort.clients)


def kept_rows(client: Client, cohort: TrainedCohort, *, keeps_local: bool) -> Params:
    """Stacked: all rows of a trained cohort that are stored; also its models, if they are kept or are a state."""
    check_kept(client, cohort)
    rows = dict(cohort.state) | with_prefix("memory", cohort.optimizer_state)
    rows |= with_prefix("own", {k: v for k, v in (cohort.params | cohort.buffers).items() if k in cohort.local_tensors})
    if keeps_local or "local" in client.state_spec():
        rows |= with_prefix("local", cohort.params) | with_prefix("local", cohort.buffers)
    return rows
