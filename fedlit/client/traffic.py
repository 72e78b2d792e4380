"""What a client is sent once, at its first participation, beside what `Client.traffic` counts for each round."""

from fedlit.client.base import Client
from fedlit.client.net_parts import trained_buffers, trained_params
from fedlit.client.specs import INITIAL, Lives, lives_of


def begins_at_z0(client: Client) -> bool:
    """Whether a state that lives with the client has z^0 as its first value."""
    lives = lives_of(client.state_spec())
    return any(lives[name] is not Lives.SERVER and first is INITIAL for name, first in client.first_values().items())


def first_numbers(client: Client) -> int:
    """How many numbers these are: the tensors that the client keeps from then on, and z^0 if a first value is it."""
    params = trained_params(client.net)
    tensors = params | trained_buffers(client.net)
    once = frozenset() if client.average_kept else client.local_tensors
    kept = sum(value.numel() for name, value in tensors.items() if name in once)
    return kept + (sum(value.numel() for value in params.values()) if begins_at_z0(client) else 0)
