"""What the server knows of a cohort: models and the states that live there. What stays with a client is not read."""

from fedlit.client.base import Client
from fedlit.client.cohort import Cohort, TrainedCohort
from fedlit.client.messages import Message
from fedlit.client.specs import FirstValues, Lives, lives_of, row_names, sent_values
from fedlit.client.states import ClientStates
from fedlit.client.traffic import begins_at_z0
from fedlit.params import Params, with_prefix
from fedlit.rounds.assembly import RoundParts
from fedlit.rounds.gathering import Gatherer
from fedlit.server.server import Server

TRAINED_IN = "node.round"
"""A number for each client at the server: the round of the run whose rows count, which is that in which it was asked.

A state's name has no dots."""


class ServerGatherer(Gatherer):
    """Makes cohorts without what stays with the clients."""

    def first_values(self) -> FirstValues:
        """The first values of the states that live at the server."""
        return at_server_values(self.client)

    def received(self, server: Server, chosen: list[int], params: Params, buffers: Params) -> tuple[Params, Params]:
        """The server's model alone: the tensors that clients keep are with them."""
        return params, buffers

    def kept_optimizer_state(self, cohort: Cohort, server: Server) -> Params:
        """Nothing: the states of local optimisers are with the clients."""
        return {}


class ServerParts(RoundParts):
    """The parts of a run whose clients are nodes."""

    def rows_of(self, cohort: TrainedCohort) -> Params:
        """Stacked: the states that live at the server, x_i where the server keeps it, and the round."""
        names = row_names(at_server_values(self.client), cohort.params)
        rows = {name: value for name, value in cohort.state.items() if name in (*names, TRAINED_IN)}
        if "local" in at_server_values(self.client):
            rows |= with_prefix("local", cohort.params) | with_prefix("local", cohort.buffers)
        return rows


def at_server_values(client: Client) -> FirstValues:
    """The first values of the states that live at the server, or there too."""
    lives = lives_of(client.state_spec())
    return {name: first for name, first in client.first_values().items() if lives[name] is not Lives.CLIENT}


def trained_in(states: ClientStates, client: int) -> int | None:
    """The round of the run in which a client trained last; None if it never did."""
    return int(states.row(TRAINED_IN, client)) if states.has(client) else None


def training_request(client: Client, cohort: Cohort, position: int, states: ClientStates, initial: Params) -> Message:
    """What one client of a cohort is sent to train.

    The tensors that a client keeps go down once, and so does z^0, if a first value is it.
    """
    part, base = cohort.take([position]), trained_in(states, cohort.clients[position])
    kept = client.local_tensors if base is not None and not client.average_kept else frozenset()
    sent = row_names(sent_values(client.state_spec()), part.received)
    stacked = {
        "reports": part.reports,
        "sizes": part.sizes,
        "steps": part.steps,
        "received": {name: value for name, value in part.received.items() if name not in kept},
        "received_buffers": {name: value for name, value in part.received_buffers.items() if name not in kept},
        "state": {name: value for name, value in part.state.items() if name in sent},
        "sent": part.sent,
    }
    plain = ("round", "run_round", "population", "clients", "draw_rounds", "lrs")
    return {
        **{name: getattr(part, name) for name in plain},
        "stacked": stacked,
        "local_tensors": sorted(client.local_tensors),
        "rows_of": base,
        **({"initial": initial} if base is None and begins_at_z0(client) else {}),
    }
