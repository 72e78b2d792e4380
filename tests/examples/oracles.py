"""The worked examples in NumPy, in plain loops from the papers; softmax regression with theta = [weight | bias].

Nothing here knows fedlit. `batches[t][i]` are the mini-batches of client i in round t, as arrays of positions among its
own samples; `first[t][i]` those of a solve that comes before. Every function returns what it names in its last line.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray
Plan = Sequence[dict[int, list[Array]]]
Cohorts = Sequence[Sequence[int]]


class Clients:
    """Features with a column of ones, and labels, of each client."""

    def __init__(self, x: Sequence[Array], y: Sequence[Array]) -> None:
        self.x = [np.hstack([own, np.ones((len(own), 1))]) for own in x]
        self.y = list(y)
        self.sizes = np.array([len(own) for own in y], float)

    def gradient(self, i: int, theta: Array, rows: Array) -> Array:
        """Of the mean cross-entropy over these rows."""
        x, y = self.x[i][rows], self.y[i][rows]
        scores = np.exp(x @ theta.T)
        chances = scores / scores.sum(1, keepdims=True)
        wanted = np.eye(len(theta))[y]
        return np.asarray((chances - wanted).T @ x / len(y))


def fednova(clients: Clients, z: Array, cohorts: Cohorts, batches: Plan, lr: float, momentum: float) -> Array:
    for cohort, plan in zip(cohorts, batches, strict=True):
        share = {i: clients.sizes[i] / clients.sizes[list(cohort)].sum() for i in cohort}
        direction, effective = np.zeros_like(z), 0.0
        for i in cohort:
            x, velocity = z.copy(), np.zeros_like(z)
            for rows in plan[i]:
                velocity = momentum * velocity + clients.gradient(i, x, rows)
                x = x - lr * velocity
            # the gradient of step k enters every later move: 1 + ρ + … + ρ^(K - 1 - k) times
            counted = [sum(momentum**j for j in range(len(plan[i]) - k)) for k in range(len(plan[i]))]
            direction += share[i] * (z - x) / (lr * sum(counted))
            effective += share[i] * sum(counted)
        z = z - effective * lr * direction
    return z


def fedexp(clients: Clients, z: Array, cohorts: Cohorts, batches: Plan, lr: float, epsilon: float) -> dict[str, Any]:
    steps: list[float] = []
    before = z
    for cohort, plan in zip(cohorts, batches, strict=True):
        updates = []
        for i in cohort:
            x = z.copy()
            for rows in plan[i]:
                x = x - lr * clients.gradient(i, x, rows)
            updates.append(z - x)
        mean = sum(updates) / len(updates)
        lengths = sum(float(np.sum(update**2)) for update in updates)
        steps.append(max(1.0, lengths / (2 * len(updates) * (float(np.sum(mean**2)) + epsilon))))
        before, z = z, z - steps[-1] * mean
    return {"z": z, "measured": (before + z) / 2, "steps": steps}


def fedrep(clients: Clients, z: Array, cohorts: Cohorts, first: Plan, batches: Plan, lr: float) -> dict[str, Any]:
    """The head is the bias, the last column."""
    body, heads = z[:, :-1].copy(), {i: z[:, -1].copy() for i in range(len(clients.y))}
    for t, cohort in enumerate(cohorts):
        bodies = {}
        for i in cohort:
            head = heads[i]
            for rows in first[t][i]:
                head = head - lr * clients.gradient(i, np.column_stack([body, head]), rows)[:, -1]
            own = body.copy()
            for rows in batches[t][i]:
                own = own - lr * clients.gradient(i, np.column_stack([own, head]), rows)[:, :-1]
            heads[i], bodies[i] = head, own
        total = sum(clients.sizes[i] for i in cohort)
        body = sum(clients.sizes[i] * bodies[i] for i in cohort) / total
    return {"body": body, "heads": heads}


def apfl(
    clients: Clients, z: Array, cohorts: Cohorts, batches: Plan, rates: Sequence[float], mix: float, adaptive: bool
) -> dict[str, Any]:
    everyone = range(len(clients.y))
    v, alpha, mixed = {i: z.copy() for i in everyone}, dict.fromkeys(everyone, mix), {i: z.copy() for i in everyone}
    for t, (cohort, plan) in enumerate(zip(cohorts, batches, strict=True)):
        sent = []
        for i in cohort:
            w = z.copy()
            for rows in plan[i]:
                at_mixture = clients.gradient(i, alpha[i] * v[i] + (1 - alpha[i]) * w, rows)
                moved = alpha[i] - rates[t] * float(np.sum((v[i] - w) * at_mixture))
                v[i] = v[i] - rates[t] * alpha[i] * at_mixture
                w = w - rates[t] * clients.gradient(i, w, rows)
                alpha[i] = min(1.0, max(0.0, moved)) if adaptive else alpha[i]
            mixed[i] = alpha[i] * v[i] + (1 - alpha[i]) * w
            sent.append(w)
        z = sum(sent) / len(sent)
    return {"z": z, "own_model": v, "mixed": mixed, "alpha": alpha}


def cosine_and_slope(a: Array, b: Array) -> tuple[float, Array]:
    """cos(a, b), and its gradient in a."""
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    cosine = float(a @ b) / lengths
    return cosine, b / lengths - cosine * a / float(a @ a)


def moon(
    clients: Clients, z: Array, cohorts: Cohorts, batches: Plan, lr: float, mu: float, temperature: float
) -> dict[str, Any]:
    """The representation is the vector of logits."""
    previous = {i: z.copy() for i in range(len(clients.y))}
    for cohort, plan in zip(cohorts, batches, strict=True):
        trained = {}
        for i in cohort:
            x = z.copy()
            for rows in plan[i]:
                slope = clients.gradient(i, x, rows)
                for sample in clients.x[i][rows]:
                    near, towards = cosine_and_slope(x @ sample, z @ sample)
                    far, away = cosine_and_slope(x @ sample, previous[i] @ sample)
                    chance = np.exp(near / temperature) / (np.exp(near / temperature) + np.exp(far / temperature))
                    # d(-log chance) = -(1 - chance) d(near - far) / τ
                    contrast = -(1 - chance) * (towards - away) / temperature
                    slope = slope + mu * np.outer(contrast, sample) / len(rows)
                x = x - lr * slope
            trained[i] = x
        previous.update(trained)
        total = sum(clients.sizes[i] for i in cohort)
        z = sum(clients.sizes[i] * trained[i] for i in cohort) / total
    return {"z": z, "local": previous}


def fedala(
    clients: Clients, z: Array, cohorts: Cohorts, first: Plan, batches: Plan, lr: float, mix_lr: float
) -> dict[str, Any]:
    own, mixing = {i: z.copy() for i in range(len(clients.y))}, {i: np.ones_like(z) for i in range(len(clients.y))}
    for t, cohort in enumerate(cohorts):
        for i in cohort:
            gap = z - own[i]
            for rows in first[t][i]:
                slope = clients.gradient(i, own[i] + gap * mixing[i], rows)
                mixing[i] = np.clip(mixing[i] - mix_lr * slope * gap, 0, 1)
            x = own[i] + gap * mixing[i]
            for rows in batches[t][i]:
                x = x - lr * clients.gradient(i, x, rows)
            own[i] = x
        total = sum(clients.sizes[i] for i in cohort)
        z = sum(clients.sizes[i] * own[i] for i in cohort) / total
    return {"z": z, "local": own, "mixing": mixing}


def topk(clients: Clients, z: Array, cohorts: Cohorts, batches: Plan, lr: float, k: int) -> dict[str, Any]:
    unsent = {i: np.zeros_like(z) for i in range(len(clients.sizes))}
    local: dict[int, Array] = {}
    for cohort, plan in zip(cohorts, batches, strict=True):
        share = {i: clients.sizes[i] / clients.sizes[list(cohort)].sum() for i in cohort}
        direction = np.zeros_like(z)
        for i in cohort:
            x = z.copy()
            for rows in plan[i]:
                x = x - lr * clients.gradient(i, x, rows)
            wanted = unsent[i] + x - z
            sent = np.zeros_like(z)
            for place in sorted(np.ndindex(z.shape), key=lambda at: -abs(wanted[at]))[:k]:
                sent[place] = wanted[place]
            unsent[i], local[i] = wanted - sent, x
            direction += share[i] * sent
        z = z + direction
    return {"z": z, "unsent": unsent, "local": local}
