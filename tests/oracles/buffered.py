"""FedBuff (Nguyen et al. 2022, Algorithm 1) on softmax regression in NumPy float64, as a queue of events.

Nothing is drawn; conventions and the model theta = [weight | bias] are those of `rounds`. Here a client trains at the
moment at which it is sent a model, and the server is a queue with two kinds of entries: a report, and a free place. At
one moment reports come before free places.

- Server: `concurrency` clients are away. A report goes to the buffer and leaves a free place. The `size`-th report
  makes the server step, z <- z - sum_j p_j s(tau_j) (received_j - x_j), with p_j the shares of the buffer's clients
  and tau_j the steps since client j was sent its model; then the buffer is empty, and free places are looked at again.
- Free places: as many clients as there are places are chosen from those that are neither away nor in the buffer.
- s: `constant` 1; `polynomial` (1 + tau)^-a; `hinge` 1 if tau <= b, else 1 / (a (tau - b) + 1) (FedAsync).
- FedAvg: plain SGD from the received model. SCAFFOLD (option II): c_i of the client, c as it was sent; c moves by
  sum_j (c_j+ - c_j) / N over the buffer. FedBC: lambda and gamma of the client move with its report; p_j is by lambda.
- A client that was sent a model at step t trains with lr * lr_decay^t, on the batches and for the seconds of (t, i).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

import numpy as np

from tests.oracles.rounds import Array, Batches, Local, Model, Problem, _join, _shares, _sizes, _train
from tests.oracles.variates import descend, rate, shifted

REPORT, FREE_PLACE = 0, 1


@dataclass(frozen=True)
class Rule:
    """An algorithm's numbers and the discount's."""

    algorithm: str = "fedavg"
    weights: str = "samples"
    discount: str = "polynomial"
    a: float = 0.5
    b: float = 4.0
    dual_lr: float = 0.0
    tolerance_lr: float = 0.0
    dual: float = 0.0
    tolerance: float = 0.0

    def s(self, staleness: int) -> float:
        if self.discount == "constant":
            return 1.0
        if self.discount == "polynomial":
            return float((1 + staleness) ** -self.a)
        return 1.0 if staleness <= self.b else 1 / (self.a * (staleness - self.b) + 1)


@dataclass(frozen=True)
class Given:
    """What the run draws: `choose(nth sending, free clients, count)`, then by (step of the server, client)."""

    choose: Callable[[int, Sequence[int], int], Sequence[int]]
    batches: Callable[[int, int], Batches]
    seconds: Callable[[int, int], float]


@dataclass(frozen=True)
class Job:
    """What a client brings back."""

    client: int
    step: int
    received: Array
    trained: Array
    own: Mapping[str, Array]


@dataclass
class Event:
    """After a step of the server."""

    time: float
    z: Array
    clients: list[int]
    staleness: list[int]
    own: dict[int, dict[str, Array]]
    server: dict[str, Array]
    away: list[int] = field(default_factory=list)


class Server:
    """z, the queue, the buffer, and what everyone keeps."""

    def __init__(
        self, problem: Problem, init: Model, given: Given, local: Local, rule: Rule, size: int, concurrency: int
    ) -> None:
        self.problem, self.given, self.local, self.rule = problem, given, local, rule
        self.size, self.concurrency = size, concurrency
        self.z, self.steps, self.sendings = _join(init), 0, 0
        self.control = np.zeros_like(self.z)
        zeros = {"control": np.zeros_like(self.z)}
        numbers = {"dual": np.array(rule.dual), "tolerance": np.array(rule.tolerance)}
        self.own: dict[int, dict[str, Array]] = {j: zeros | numbers for j in range(len(problem.x))}
        self.queue: list[tuple[float, int, int]] = [(0.0, FREE_PLACE, -1)]
        self.jobs: dict[int, Job] = {}
        self.buffer: list[Job] = []
        self.events: list[Event] = []

    def run(self, events: int) -> list[Event]:
        while len(self.events) < events:
            now, kind, client = heappop(self.queue)
            if kind == FREE_PLACE:
                self.send(now)
                continue
            self.buffer.append(self.jobs.pop(client))
            if len(self.buffer) == self.size:
                self.step(now)
            heappush(self.queue, (now, FREE_PLACE, -1))
        return self.events

    def send(self, now: float) -> None:
        busy = {*self.jobs, *(job.client for job in self.buffer)}
        free = [j for j in range(len(self.problem.x)) if j not in busy]
        count = min(self.concurrency - len(self.jobs), len(free))
        if count == 0:
            return
        for client in self.given.choose(self.sendings, free, count):
            self.jobs[client] = self.train(client)
            heappush(self.queue, (now + self.given.seconds(self.steps, client), REPORT, client))
        self.sendings += 1

    def train(self, client: int) -> Job:
        x, y, own, z = self.problem.x[client], self.problem.y[client], self.own[client], self.z
        lr, batches = rate(self.local, self.steps), self.given.batches(self.steps, client)
        if self.rule.algorithm == "scaffold":
            correction = self.control - own["control"]
            trained, _ = descend(z, batches, shifted(x, y, lambda _: correction), self.local, lr)
            new = {"control": own["control"] - self.control + (z - trained) / (len(batches) * lr)}
        elif self.rule.algorithm == "fedbc":
            trained, _ = _train(z, z, 2 * float(own["dual"]), x, y, batches, self.local, lr)
            slope = np.sum((trained - z) ** 2) - own["tolerance"]
            new = {
                "dual": np.maximum(own["dual"] + self.rule.dual_lr * slope, 0.0),
                "tolerance": own["tolerance"] + self.rule.tolerance_lr * own["dual"],
            }
        else:
            trained, new = _train(z, z, 0.0, x, y, batches, self.local, lr)[0], {}
        return Job(client, self.steps, z.copy(), trained, own | new)

    def step(self, now: float) -> None:
        clients = [job.client for job in self.buffer]
        if self.rule.weights == "dual":
            duals = np.array([float(job.own["dual"]) for job in self.buffer])
            shares = duals / duals.sum()
        else:
            shares = _shares(self.rule.weights, _sizes(self.problem, clients))
        stale = [self.steps - job.step for job in self.buffer]
        change = np.zeros_like(self.z)
        for p, tau, job in zip(shares, stale, self.buffer, strict=True):
            self.z = self.z - p * self.rule.s(tau) * (job.received - job.trained)
            change += job.own["control"] - self.own[job.client]["control"]
            self.own[job.client] = dict(job.own)
        self.control = self.control + change / len(self.problem.x)
        self.steps, self.buffer = self.steps + 1, []
        kept = {client: dict(self.own[client]) for client in clients}
        self.events.append(Event(now, self.z.copy(), clients, stale, kept, {"c": self.control}, sorted(self.jobs)))
