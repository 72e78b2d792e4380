"""NodeTraining: the local training of a round, by nodes, each of which is a client with data of its own somewhere else.

Nodes that do not answer are left out of the round's cohort.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Self

import torch

from fedlit.client.cohort import Cohort, TrainedCohort
from fedlit.client.cohort_messages import join_replies
from fedlit.client.messages import Message
from fedlit.client.specs import Lives, lives_of, number_states
from fedlit.client.states import ClientStates
from fedlit.errors import MessageError
from fedlit.params import Params
from fedlit.remote.checks import check_answer
from fedlit.remote.gathering import TRAINED_IN, training_request
from fedlit.remote.nodes import Nodes
from fedlit.rounds.local_training import LocalTraining


@dataclass(frozen=True)
class NodeTraining(LocalTraining):
    """Asks nodes to train, checks their answers, and joins these to trained cohorts. Its engine is not used."""

    nodes: Nodes
    states: ClientStates
    """What the server keeps for each client."""
    initial: Params
    """z^0, the model before the first round."""
    told: Collection[str]
    """Risks that nodes measure and send, because a weighting or callback reads them."""

    @classmethod
    def of(
        cls, training: LocalTraining, nodes: Nodes, states: ClientStates, initial: Params, told: Collection[str]
    ) -> Self:
        """The same training, by nodes."""
        arguments = {item.name: getattr(training, item.name) for item in fields(training)}
        return cls(**arguments, nodes=nodes, states=states, initial=initial, told=told)

    def measure_received(self, cohort: Cohort) -> None:
        """Does nothing: nodes measure before they train, and send what the server needs."""

    def measure_trained(self, cohort: TrainedCohort) -> None:
        """Does nothing, for the same reason."""

    def train(self, cohorts: Sequence[Cohort]) -> list[TrainedCohort]:
        """Let the nodes of all these clients train, all at once."""
        # Seconds have entries for those who report alone, so that `take` cannot cut them.
        timeless = [replace(cohort, parts=cohort.parts | {"seconds": torch.zeros(0)}) for cohort in cohorts]
        answers = self.answers_of(timeless)
        return [self.trained(cohort, answers) for cohort in timeless]

    def requests_of(self, cohorts: Sequence[Cohort]) -> dict[int, Message]:
        """Client -> what it is sent."""
        return {
            client: training_request(self.client, cohort, k, self.states, self.initial)
            for cohort in cohorts
            for k, client in enumerate(cohort.clients)
        }

    def answers_of(self, cohorts: Sequence[Cohort]) -> dict[int, Message]:
        """Client -> what it sends back, once all have answered who will."""
        return self.nodes.ask("train", self.requests_of(cohorts))

    def asked_in(self, cohort: Cohort, client: int) -> int:
        """The round of the run in which a client was asked, by which its node names the rows."""
        return cohort.run_round

    def trained(self, cohort: Cohort, answers: Mapping[int, Message]) -> TrainedCohort:
        """The clients that answered as a trained cohort; the others are left out of it and keep what they have."""
        came = [k for k, client in enumerate(cohort.clients) if client in answers and self.accepts(cohort, k, answers)]
        self.nodes.require_some([k for k in came if bool(cohort.reports[k])], f"a model in round {cohort.run_round}")
        if len(came) < len(cohort.clients):
            cohort = cohort.take(came)
        replies = [self.fields_of(cohort, k, answers[client]) for k, client in enumerate(cohort.clients)]
        return join_replies(cohort, replies)

    def accepts(self, cohort: Cohort, position: int, answers: Mapping[int, Message]) -> bool:
        """Whether an answer is what this client has to send; if not, it is logged, and the client is left out."""
        client = cohort.clients[position]
        try:
            check_answer(self.client, cohort.take([position]), answers[client], self.told)
        except MessageError as error:
            self.nodes.leave_out(client, f"sent an answer that is not used: {error}")
            return False
        return True

    def fields_of(self, cohort: Cohort, position: int, answer: Message) -> Message:
        """A client's answer as fields of a trained cohort; tensors that it keeps are those of the server's model."""
        part, model, client = cohort.take([position]), answer["model"], cohort.clients[position]
        return {
            "steps_taken": answer["steps_taken"],
            "losses": answer["losses"],
            "params": {name: model.get(name, value) for name, value in part.received.items()},
            "buffers": {name: model.get(name, value) for name, value in part.received_buffers.items()},
            "state": {name: torch.full((1,), torch.nan) for name in self.unknown_numbers()}
            | part.state
            | answer["state"]
            | {TRAINED_IN: torch.tensor([self.asked_in(cohort, client)])},
            "reported_rows": answer["reported_rows"],
            **answer["measured"],
        }

    def unknown_numbers(self) -> list[str]:
        """Names of the states that are one number and stay with the clients: their curves are NaN here."""
        lives = lives_of(self.client.state_spec())
        return [name for name in number_states(self.client.first_values()) if lives[name] is Lives.CLIENT]
