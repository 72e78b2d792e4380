"""FedProto and FedPAC in plain torch loops with float64, from their papers; nothing here knows fedlit's engines.

The net is a linear layer with tanh, the body, and a linear layer, the head. A model is the list of these four tensors.
"""

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from tests.examples.oracles import Cohorts, Plan

Model = list[Tensor]


def features(model: Model, x: Tensor) -> Tensor:
    return torch.tanh(x @ model[0].T + model[1])


def loss(model: Model, x: Tensor, y: Tensor, centres: dict[int, Tensor], pull: float) -> Tensor:
    h = features(model, x)
    total = cross_entropy(h @ model[2].T + model[3], y)
    for row, label in zip(h, y.tolist(), strict=True):
        if label in centres:
            total = total + pull * ((row - centres[label]) ** 2).mean() / len(y)
    return total


def descended(
    model: Model,
    x: Tensor,
    y: Tensor,
    batches: Sequence[Any],
    centres: dict[int, Tensor],
    pull: float,
    lr: float,
    who: str,
) -> Model:
    """SGD over these mini-batches, of the body, the head or all."""
    moving = {"head": (2, 3), "body": (0, 1), "all": (0, 1, 2, 3)}[who]
    for rows in batches:
        now = [value.clone().requires_grad_(place in moving) for place, value in enumerate(model)]
        picked = torch.as_tensor(rows)
        slopes = torch.autograd.grad(loss(now, x[picked], y[picked], centres, pull), [now[k] for k in moving])
        moved = {place: model[place] - lr * slope for place, slope in zip(moving, slopes, strict=True)}
        model = [moved.get(place, value) for place, value in enumerate(model)]
    return model


def class_sums(model: Model, x: Tensor, y: Tensor) -> dict[int, tuple[int, Tensor]]:
    """Class -> the number of its rows, and the sum of their features."""
    h = features(model, x)
    return {k: (int((y == k).sum()), h[y == k].sum(0)) for k in sorted(set(y.tolist()))}


def new_centres(before: dict[int, Tensor], sums: Sequence[dict[int, tuple[int, Tensor]]]) -> dict[int, Tensor]:
    seen = sorted({k for own in sums for k in own})
    return before | {
        k: sum((own[k][1] for own in sums if k in own), torch.zeros(1)) / sum(own[k][0] for own in sums if k in own)
        for k in seen
    }


def fedproto(
    xs: Sequence[Tensor], ys: Sequence[Tensor], z: Model, cohorts: Cohorts, batches: Plan, lr: float, pull: float
) -> dict[str, Any]:
    own, centres = {i: z for i in range(len(xs))}, dict[int, Tensor]()
    for cohort, plan in zip(cohorts, batches, strict=True):
        for i in cohort:
            own[i] = descended(own[i], xs[i], ys[i], plan[i], centres, pull, lr, "all")
        centres = new_centres(centres, [class_sums(own[i], xs[i], ys[i]) for i in cohort])
    return {"own": own, "centres": centres}


def best_mixture(i: int, means: Sequence[Tensor], variances: Sequence[float]) -> Tensor:
    """The α of a client: of all sets of clients, that with the least error whose unconstrained optimum is positive."""
    count, best, least = len(means), torch.zeros(0), float("inf")
    inner = [[float(((means[i] - a) * (means[i] - b)).sum()) for a in means] for b in means]
    matrix = torch.tensor(inner, dtype=torch.float64)
    matrix = matrix + torch.diag(torch.tensor(variances, dtype=torch.float64))
    for size in range(1, count + 1):
        for chosen in combinations(range(count), size):
            part = matrix[list(chosen)][:, list(chosen)]
            answer = torch.linalg.solve(part, torch.ones(size, dtype=torch.float64))
            shares = answer / answer.sum()
            error = float(shares @ part @ shares)
            if bool((shares >= 0).all()) and error < least:
                best, least = torch.zeros(count, dtype=torch.float64), error
                best[list(chosen)] = shares
    return best


def fedpac(
    xs: Sequence[Tensor],
    ys: Sequence[Tensor],
    z: Model,
    cohorts: Cohorts,
    first: Plan,
    batches: Plan,
    lr: float,
    pull: float,
) -> dict[str, Any]:
    body, heads = z[:2], {i: z[2:] for i in range(len(xs))}
    centres: dict[int, Tensor] = {}
    mixtures: list[Tensor] = []
    for t, cohort in enumerate(cohorts):
        means, variances, models = [], [], {}
        for i in cohort:
            received, count = [*body, *heads[i]], len(ys[i])
            own = torch.zeros(len(z[3]), z[0].shape[0], dtype=torch.float64)
            for k, (_, total) in class_sums(received, xs[i], ys[i]).items():
                own[k] = total / count
            square = float((features(received, xs[i]) ** 2).sum()) / count
            means.append(own)
            variances.append((square - float((own**2).sum())) / count)
            fitted = descended(received, xs[i], ys[i], first[t][i], centres, pull, lr, "head")
            models[i] = descended(fitted, xs[i], ys[i], batches[t][i], centres, pull, lr, "body")
        centres = new_centres(centres, [class_sums(models[i], xs[i], ys[i]) for i in cohort])
        total = sum(len(ys[i]) for i in cohort)
        body = [sum((len(ys[i]) / total * models[i][k] for i in cohort), torch.zeros(1)) for k in (0, 1)]
        for place, i in enumerate(cohort):
            mixtures.append(best_mixture(place, means, variances))
            pairs = list(zip(mixtures[-1].tolist(), cohort, strict=True))
            heads[i] = [sum((share * models[j][k] for share, j in pairs), torch.zeros(1)) for k in (2, 3)]
    return {"body": body, "heads": heads, "centres": centres, "mixtures": mixtures}
