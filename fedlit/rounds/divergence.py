"""Divergence: a client's numbers are not finite, or the mean training loss exploded. Checked before rows are stored."""

import math

import numpy as np
import torch

from fedlit.client.cohort import TrainedCohort
from fedlit.errors import DivergedError
from fedlit.params import Params

_ADVICE = "No checkpoint holds this round. Lower model.lr, or set model.clip, and start anew."


def check_divergence(cohort: TrainedCohort, first_risk: float | None, factor: float) -> float | None:
    """Raise DivergedError, or return the first round's mean training loss, to which later ones are compared."""
    number, position = cohort.run_round, first_not_finite(cohort)
    if position is not None:
        client = cohort.clients[position]
        raise DivergedError(
            f"Round {number}: client {client} diverged (loss {float(cohort.losses[position]):g}, weights or loss not "
            f"finite). {_ADVICE}",
            round=number,
            client=client,
        )
    risk = cohort.mean_loss
    if math.isnan(risk):  # nobody trained
        return first_risk
    first = risk if first_risk is None else first_risk
    if risk > factor * first:
        client = cohort.clients[int(cohort.losses.nan_to_num(nan=-torch.inf).argmax())]
        raise DivergedError(
            f"Round {number}: the mean training loss is {risk:g}, above {factor:g} times the first round's {first:g}; "
            f"client {client} has the largest. {_ADVICE} To allow more, raise trainer.divergence_factor.",
            round=number,
            client=client,
        )
    return first


def check_servers(models: Params, number: int) -> None:
    """Raise DivergedError if a server's model is not finite after its step; `models` are stacked."""
    if not all(np.isfinite(value.numpy()).all() for value in models.values() if value.is_floating_point()):
        raise DivergedError(
            f"Round {number}: the server's model is not finite after its step, though every client's is. No checkpoint "
            "holds this round. Lower the rate of trainer.server_optimizer, or look at a callback that changes the "
            "pseudo-gradient, and continue with --resume or start anew.",
            round=number,
            client=None,
        )


def first_not_finite(cohort: TrainedCohort) -> int | None:
    """Position of the first client whose loss or parameters are not finite, or None."""
    losses = cohort.losses.numpy()[cohort.steps.numpy() > 0]
    if all(np.isfinite(value).all() for value in (losses, *(value.numpy() for value in cohort.params.values()))):
        return None
    bad = ~torch.isfinite(cohort.losses) & (cohort.steps > 0)
    for value in cohort.params.values():
        bad |= ~torch.isfinite(value.flatten(1)).all(1)
    return int(torch.nonzero(bad)[0])
