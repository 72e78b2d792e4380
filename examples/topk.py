"""Top-k sparsification with error feedback: Sparsified SGD with Memory (Stich et al., 2018), for the moves of clients.

A client sends the k largest numbers of its move, and keeps the rest for the next time.

    local    x_i by SGD from z, as in FedAvg; the client keeps x_i
    send     p_i = e_i + x_i - z,   s_i = the k numbers of p_i of largest magnitude, 0 elsewhere,   e_i <- p_i - s_i
    server   z <- z + sum_i n_i s_i / sum_i n_i over the cohort

Kept per client: e_i, which starts at zero. A number of s_i is sent with its place, which takes four bytes.
"""

from typing import Any

import torch
from torch import nn

from fedlit import ZEROS, Client, Phase, StateSpec, TrainedCohort
from fedlit.params import subtract, with_prefix


class TopK(Client):
    """Federated averaging of sparse moves.

    Args:
        net: the network that is trained.
        share: k over the numbers of the model: how much of a move is sent.
        local: the local options of fedlit.Client.
    """

    newcomers_get_z = True

    def __init__(self, net: nn.Module, *, share: float = 0.1, **local: Any) -> None:
        super().__init__(net, **local)
        self.share = share

    def state_spec(self) -> StateSpec:
        """e_i."""
        return {"unsent": ZEROS}

    def on_phase_end(self, cohort: TrainedCohort, phase: Phase) -> None:
        """s_i, which is sent, and e_i, which is not."""
        unsent = cohort.model("unsent")
        wanted = {name: unsent[name] + move for name, move in cohort.moves.items()}
        flat = torch.cat([value.flatten(1) for value in wanted.values()], 1)
        k = max(1, round(self.share * flat.shape[1]))
        places = flat.abs().topk(k).indices
        largest = torch.zeros_like(flat).scatter(1, places, flat.gather(1, places))
        pieces = torch.split(largest, [value[0].numel() for value in wanted.values()], 1)
        sent = {name: piece.view_as(wanted[name]) for name, piece in zip(wanted, pieces, strict=True)}
        cohort.sent_params = {name: cohort.received[name] + value for name, value in sent.items()}
        cohort.sent_bytes = torch.full((len(flat),), k * (flat.element_size() + 4.0), dtype=torch.float64)
        cohort.state |= with_prefix("unsent", subtract(wanted, sent))
