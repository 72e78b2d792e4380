"""Rehearsal: a run's clock without its training. Who steps when, by the draws and the code of the run itself."""

from functools import partial

from fedlit.client import Client
from fedlit.data.base import FederatedDataModule
from fedlit.data.pooled import Pooled
from fedlit.federation import Event, Federation
from fedlit.gathering import Gathering, RoundOptions
from fedlit.server.optimizers import SGD
from fedlit.server.server import Server
from fedlit.states import ClientStates


def rehearse(client: Client, data: FederatedDataModule, options: RoundOptions, rounds: int) -> list[Event]:
    """The events of so many rounds; models and states stay as they are at the start. The data are set up.

    Times are those of the run where a client's work does not depend on what was trained, as in all of fedlit's own
    algorithms.
    """
    open_one = partial(Server, client.net, SGD().build, states=ClientStates())
    federation = Federation.of(client, data, open_one, [], options.cloud, options.seed, options.buffer)
    gathering = Gathering(client, Pooled(data) if client.pools_data else data, options)
    events = []
    for number in range(1, rounds + 1):
        events.append(federation.next_event(gathering))
        federation.count(events[-1], number)
    return events
