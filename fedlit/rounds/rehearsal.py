"""Rehearsal: the clock of a run without its training, computed by the draws and the code of the run itself."""

from fedlit.client.base import Client
from fedlit.client.states import ClientStates
from fedlit.data.base import FederatedDataModule
from fedlit.data.pooled import Pooled
from fedlit.rounds.assembly import create_protocol
from fedlit.rounds.gathering import Gatherer, RoundOptions
from fedlit.rounds.protocol import Event, simulate_clock
from fedlit.server.optimizers import SGD


def rehearse(client: Client, data: FederatedDataModule, options: RoundOptions, rounds: int) -> list[Event]:
    """The events of so many rounds of a run with these options, under any protocol. The data must be set up."""
    protocol = create_protocol(client, data, SGD().build, [], ClientStates(), options)
    gatherer = Gatherer(client, Pooled(data) if client.pools_data else data, options)
    return simulate_clock(protocol, gatherer, rounds)
