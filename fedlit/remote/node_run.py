"""NodeRun: a run on the node of one client: its local training and its measurements, as in a simulation."""

from pathlib import Path

import torch

from fedlit.client.base import Client
from fedlit.client.cohort import Cohort, TrainedCohort
from fedlit.client.cohort_messages import cohort_of
from fedlit.client.local_optimizers import initial_optimizer_state
from fedlit.client.messages import Message
from fedlit.client.net_parts import trained_buffers
from fedlit.client.specs import FirstValues, Lives, lives_of, row_names
from fedlit.client.states import ClientStates
from fedlit.client.tasks import LOSSES
from fedlit.data.base import FederatedDataModule
from fedlit.engines.sequential import SequentialEngine
from fedlit.evaluation.evaluator import Evaluator
from fedlit.evaluation.round_evaluator import EvaluationOptions, RoundEvaluator
from fedlit.evaluation.user_models import UserModels
from fedlit.metrics.user_scores import UserScores
from fedlit.params import Params, copy_into, row, under_prefix
from fedlit.remote.checks import check_request
from fedlit.remote.node_rows import NodeRows
from fedlit.remote.run_plan import RunPlan
from fedlit.rounds.gathering import Gatherer, RoundOptions
from fedlit.rounds.local_training import LocalTraining, kept_rows
from fedlit.server.sampling import UniformSampler


class NodeRun:
    """A run on one node.

    Args:
        plan: what the server says of the run.
        client: the algorithm.
        data: the node's data under the client's number.
        folder: of the client's rows.
    """

    def __init__(self, plan: RunPlan, client: Client, data: FederatedDataModule, folder: Path) -> None:
        self.plan, self.client, self.data = plan, client, data
        self.rows = NodeRows(folder)
        client.net.to(plan.torch_dtype)
        copy_into(client.net, plan.fixed)
        client.prepare()
        data.cast(plan.torch_dtype)
        engine = SequentialEngine(plan.seed, data.rows)
        options = RoundOptions(1, UniformSampler(), 1, torch.inf, True, plan.seed)
        gatherer = Gatherer(client, data, options)
        evaluator = Evaluator(client, data)
        self.training = LocalTraining(client, data, gatherer, engine, evaluator, frozenset(plan.needs))
        self.lives = lives_of(client.state_spec())

    # ---- training ----------------------------------------------------------------------------------------------------

    def train(self, request: Message) -> Message:
        """One round of the client; its rows are on the disk before it answers."""
        cohort, base = cohort_of(request), request["rows_of"]
        check_request(self.client, self.plan.client, cohort)
        self.add_own_rows(cohort, self.rows.read(base), request.get("initial", {}))
        types = {name: value.dtype for name, value in self.own_rows(TrainedCohort.begin(cohort)).items()}
        self.training.measure_received(cohort)
        [trained] = self.training.train([cohort])
        self.training.measure_trained(trained)
        if bool(trained.trained):
            rows = {name: value.to(types.get(name, value.dtype)) for name, value in self.own_rows(trained).items()}
            self.rows.write(cohort.run_round, rows, base)
        return self.report(trained)

    def add_own_rows(self, cohort: Cohort, rows: Params, initial: Params) -> None:
        """Fill in what stays with the client: first values before its first training.

        Args:
            cohort: what the server has sent.
            rows: what the client has kept; empty before its first training.
            initial: z^0, if a first value is it.
        """
        client = self.client
        model = cohort.received | cohort.received_buffers | under_prefix("own", rows)
        cohort.received = {name: model[name] for name in client.local_params}
        cohort.received_buffers = {name: model[name] for name in trained_buffers(client.net)}
        kept = self.first_values()
        names = row_names(kept, cohort.received)
        first = {} if rows else client.initial_rows(kept, cohort.received, initial or row(cohort.received, 0))
        cohort.state = cohort.state | {name: rows[name] if rows else first[name] for name in names}
        if client.keep_optimizer:
            start, _ = cohort.start_of(client.phases()[0].start)
            fresh = initial_optimizer_state(client.local_optimizer(), start)
            cohort.optimizer_state = under_prefix("memory", rows) if rows else fresh

    def first_values(self) -> FirstValues:
        """The first values of the states that live here."""
        first = self.client.first_values()
        return {name: value for name, value in first.items() if self.lives[name] is not Lives.SERVER}

    def own_rows(self, cohort: TrainedCohort) -> Params:
        """Stacked: all that the client keeps; x_i, which it is measured with, even if it lives at the server."""
        rows = kept_rows(self.client, cohort, keeps_local=self.plan.keeps_local)
        elsewhere = {name for name, lives in self.lives.items() if lives is Lives.SERVER} - {"local"}
        return {name: value for name, value in rows.items() if state_of(name) not in elsewhere}

    def report(self, cohort: TrainedCohort) -> Message:
        """What the client sends: x_i without what stays, its loss, and what `report_spec` declares."""
        kept = frozenset() if self.client.average_kept else self.client.local_tensors
        model = cohort.reported | cohort.buffers
        reported = self.client.report_spec()
        measured = [*self.plan.tells, *(["sent_bytes"] if cohort.sent_bytes.numel() else [])]
        return {
            "steps_taken": cohort.steps_taken,
            "losses": cohort.losses,
            "model": {name: value for name, value in model.items() if name not in kept},
            "state": {name: value for name, value in cohort.state.items() if state_of(name) in reported},
            "reported_rows": cohort.reported_rows,
            "measured": {name: getattr(cohort, name) for name in measured},
        }

    # ---- measuring ---------------------------------------------------------------------------------------------------

    def evaluate(self, request: Message) -> Message:
        """Sums over the client's own tests: of the measured model (`shared`), and of the groups that are asked for."""
        number = self.plan.client
        shared: Params = request["model"]
        z: Params = request.get("z", shared)
        rows, states = self.rows.read(request["rows_of"]), ClientStates()
        if rows:
            states.load_state_dict({"clients": [number], "rows": rows})
        models = UserModels.of(
            self.client, lambda user: z, states, request.get("initial", {}), keeps_local=self.plan.keeps_local
        )
        options = EvaluationOptions((), self.plan.finetunings, self.plan.finetune_from, self.plan.seed)
        measuring = RoundEvaluator(self.client, self.data, models, options)
        with measuring.evaluator.evaluating():
            _, users = measuring.evaluator.global_model(shared)
            sums = {"shared": self.sums_of(users)}
            measured = {
                "local": lambda: measuring.local_models(users),
                "personal": lambda: measuring.personal_models(users),
                "finetuned": lambda: measuring.finetuned_models(users, request["number"]),
            }
            sums |= {group: self.sums_of(measured[group]()) for group in request["groups"]}
            if request["validates"]:
                sums["val"] = measuring.evaluator.sums(shared, self.data.global_val)
        return {"sums": sums}

    def score(self, request: Message) -> Message:
        """Sums of the task's first measure over the client's own tests, for each of these models."""
        first, rows = self.client.task.first.name, self.data.everyone.test[self.plan.client]
        sums = self.training.evaluator.sums_of_each((model, rows) for model in request["models"])
        return {"sums": sums[first]}

    def sums_of(self, scores: UserScores) -> Params:
        """The client's own sums."""
        return {name: sums[self.plan.client].clone() for name, sums in {**scores.sums, LOSSES: scores.losses}.items()}


def state_of(row: str) -> str:
    """The state that a row belongs to: `local.linear.weight` -> `local`."""
    return row.partition(".")[0]
