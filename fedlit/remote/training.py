"""NodeTraining: the local training of a round, by nodes. A node that does not answer leaves the cohort of the round."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Self

import torch

from fedlit.client.cohort import Cohort, TrainedCohort
from fedlit.client.cohort_messages import join_replies
from fedlit.client.messages import Message
from fedlit.client.report import first_rows
from fedlit.client.specs import Lives, lives_of, number_states
from fedlit.client.states import ClientStates
from fedlit.errors import MessageError
from fedlit.params import Params
from fedlit.remote.checks import check_tensors
from fedlit.remote.gathering import training_request
from fedlit.remote.nodes import Nodes
from fedlit.rounds.local_training import LocalTraining


@dataclass(frozen=True)
class NodeTraining(LocalTraining):
    """Lets nodes train. Here are only what they are sent and what they report."""

    nodes: Nodes
    states: ClientStates
    """What the server keeps for each client."""
    initial: Params
    """z^0."""

    @classmethod
    def of(cls, training: LocalTraining, nodes: Nodes, states: ClientStates, initial: Params) -> Self:
        """The same training, by nodes."""
        arguments = {item.name: getattr(training, item.name) for item in fields(training)}
        return cls(**arguments, nodes=nodes, states=states, initial=initial)

    def measure_received(self, cohort: Cohort) -> None:
        """Nothing: nodes measure before they train, and tell what the server needs."""

    def measure_trained(self, cohort: TrainedCohort) -> None:
        """Nothing, likewise."""

    def train(self, cohorts: Sequence[Cohort]) -> list[TrainedCohort]:
        """Let the nodes of all these clients train, all at once."""
        timeless = [replace(cohort, parts=cohort.parts | {"seconds": torch.zeros(0)}) for cohort in cohorts]
        requests = {
            client: training_request(self.client, cohort, k, self.states, self.initial)
            for cohort in timeless
            for k, client in enumerate(cohort.clients)
        }
        answers = self.nodes.ask("train", requests)
        return [self.trained(cohort, answers) for cohort in timeless]

    def trained(self, cohort: Cohort, answers: Mapping[int, Message]) -> TrainedCohort:
        """The clients that answered as a trained cohort; the others keep what they have, as if they were not drawn."""
        came = [k for k, client in enumerate(cohort.clients) if client in answers and self.fits(cohort, k, answers)]
        self.nodes.require_some([k for k in came if bool(cohort.reports[k])], f"a model in round {cohort.run_round}")
        if len(came) < len(cohort.clients):
            cohort = cohort.take(came)
        replies = [self.fields_of(cohort, k, answers[client]) for k, client in enumerate(cohort.clients)]
        return join_replies(cohort, [[k] for k in range(len(replies))], replies)

    def fits(self, cohort: Cohort, position: int, answers: Mapping[int, Message]) -> bool:
        """Whether an answer has the names, shapes and types that it must have; if not, a line says what is wrong."""
        client, kept = cohort.clients[position], self.client.local_tensors
        models = cohort.received | cohort.received_buffers
        like = {name: value[0] for name, value in models.items() if name not in kept or self.client.average_kept}
        first = first_rows(self.client, TrainedCohort.begin(cohort))
        reported = {name: value[0] for name, value in first.items()}
        try:
            check_tensors("its model", answers[client]["model"], like, ())
            check_tensors("what it reports", answers[client]["reported_rows"], reported, ())
        except (MessageError, LookupError, AttributeError) as error:
            self.nodes.leave_out(client, f"sent an answer that is not used: it {error}")
            return False
        return True

    def fields_of(self, cohort: Cohort, position: int, answer: Message) -> Message:
        """A client's answer as fields of a trained cohort; what stays with the client is that of the server's model."""
        part, model = cohort.take([position]), answer["model"]
        return {
            "steps_taken": answer["steps_taken"],
            "losses": answer["losses"],
            "params": {name: model.get(name, value) for name, value in part.received.items()},
            "buffers": {name: model.get(name, value) for name, value in part.received_buffers.items()},
            "state": {name: torch.full((1,), torch.nan) for name in self.unknown_numbers()}
            | part.state
            | answer["state"],
            "reported_rows": answer["reported_rows"],
            **answer["measured"],
        }

    def unknown_numbers(self) -> list[str]:
        """States of one number that stay with the clients: their curves are NaN here."""
        lives = lives_of(self.client.state_spec())
        return [name for name in number_states(self.client.first_values()) if lives[name] is Lives.CLIENT]
