"""FedAvg: Communication-Efficient Learning of Deep Networks from Decentralized Data (McMahan et al., 2017).

Clients train from the server's model on their own data; the server averages what comes back.

    local    x_i <- x_i - lr grad f_i(x_i), E epochs from x_i = z        Algorithm 1, ClientUpdate
    server   z <- sum_i n_i x_i / sum_i n_i over the cohort              Algorithm 1, last line

Kept per client: nothing that training reads. Personal model: x_i after its last training.
"""

from fedlit.client.base import Client


class FedAvg(Client):
    """Federated averaging: the plain loss is the local objective (see fedlit.client.base.Client)."""

    newcomers_get_z = True
