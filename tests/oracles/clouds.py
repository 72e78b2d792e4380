"""The cloud protocols of the FedBCD paper (003; 3.1, 5.2, appendix A) on softmax regression in NumPy float64.

Nothing is drawn: the caller gives, for every server n and each of its OWN rounds r = 0, 1, ..., a `Draw`. A model is
theta = [weight | bias] of shape (classes, features + 1), as in `rounds`; models of several servers or clients are
stacked in front, so `z[..., :-1]` are the weights and `z[..., -1]` the biases. Section numbers are algorithms.md's.

Clients (server n's model when its round began is the anchor z_n, see below):

- `fedbcd` (4a, 4b; Algorithm 1, lines 5-11). K_i steps of ex = x + zeta (x - x_prev);
  x_new = clip(ex - eta_x (grad g_i(ex) + gamma_i (ex - z_n)), -box, box); x_prev <- x; x <- x_new. (x, x_prev) is kept
  from one active round to the next. An inactive client keeps everything.
- `fedbcd_i` (Algorithm 2, lines 4-19). Every client of Q~ whose counter is below `cap` runs the same steps without the
  penalty, and its counter goes up by one; then every client of Q pulls K_i times, x_prev <- x and
  x <- clip(x - gamma_i (x - z_n), -box, box), and its counter is 0.
- `fedavg`. x <- z_n, then x <- x - eta_x grad g_i(x) for every batch. No memory, no box; x_prev has no meaning.

Cloud step of the due servers M (6a, 6b; Algorithm 1, lines 16-23). K_z times, all of M at once:
w_n = sum_{m in M} a_nm z_m, then z_n <- w_n - eta_z sum_i c_i (w_n - x_i), over what ALL of the server's clients sent
last (`fedbcd`; x^(0) if nothing) or over the active ones (`fedbcd_i`, `fedavg`). The coefficients c_i are gamma_i in
form `sum` (the paper's letter), and in form `mean` they add up to 1: in proportion to gamma_i (`fedbcd`), equal
(`fedbcd_i`), in proportion to the number of samples (`fedavg`, which has no form `sum`). In form `mean` at eta_z = 1
and more than one server, w drops out: the servers do not learn of each other.

Which z_n do the clients see? Server n starts round r at its own last step and sends out the z_n of that moment. From
then until its next step it changes nothing: while its clients train, while it waits for the coordinator, and while
other servers aggregate without it (z_n^{t+1} = z_n^t, 3.1 (iii)). So (i) the anchor of round r is z_n after the
server's r-th step, however many events of the others happened meanwhile; (ii) the same z_n is what it contributes to
w at its next step; (iii) a round's result depends on nothing that happened elsewhere after the round began, and when it
is computed does not matter. `replay` trains the clients when their server steps, with the anchor stored when the round
began, and refuses a mixing matrix that would change a server that is not due.

Therefore the times do not depend on the models: a schedule (`sync_schedule`, `async_schedule`, `rigorous_schedule`) is
made from the durations alone, and `replay` follows any schedule.

What an event shows of the clients: x_i changes when its server steps (a round is taken over as a whole). Whoever reads
x_i at the finish, or at the start, of the round finds that value in the event of the server's next step.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import comb, factorial
from typing import NamedTuple

import numpy as np

from tests.oracles.rounds import Array, Batches, Model, Problem, _cross_entropy, _join

CLIENTS = ("fedbcd", "fedbcd_i", "fedavg")
Gradient = Callable[[Array, int], Array]  # (point, number of the local step) -> gradient
Survival = Callable[[Array], Array]  # x >= 0 -> P(tau > x)


@dataclass(frozen=True)
class Draw:
    """What is random in one round of one server. Mappings go from client id to value.

    `active` is Q_n^r. `batches[i]` are the rows of each local step, for the clients that may train: Q_n^r, or for
    FedBCD-I Q~_n^r, which is `offline` and contains `active`. `steps[i]` is K_i, for the clients of Q_n^r; without it
    K_i = len(batches[i]). FedBCD-I pulls K_i times; `duration` counts K_i. `arrival[i]` and `process[i]` give the
    latency: one number (formula of section 5.2, footnote 2) or K_i numbers, one per epoch. `tau` replaces them.
    """

    active: Sequence[int]
    batches: Mapping[int, Batches]
    steps: Mapping[int, int] | None = None
    offline: Sequence[int] | None = None
    arrival: Mapping[int, float] = field(default_factory=dict)
    process: Mapping[int, float | Sequence[float]] = field(default_factory=dict)
    tau: float | None = None

    def k(self, i: int) -> int:
        """K_i^(t)."""
        return len(self.batches[i]) if self.steps is None else self.steps[i]


@dataclass(frozen=True)
class Rule:
    """The hyper-parameters. `gamma` is one number or one per client. `box` None: no box (X is the whole space).

    `over` (`active` or `all`) and `weights` (`gamma`, `uniform` or `samples`, for form `mean`) replace the client
    algorithm's own choice, which is in the module's docstring. `after_pull` (FedBCD-I): `literal` makes (x, x_prev) the
    last two iterates of the pull, as the indices of Algorithm 2 say; `reset` sets x_prev = x.
    """

    client: str
    eta_x: float
    eta_z: float
    gamma: float | Sequence[float] = 1.0
    zeta: float = 0.0
    box: float | None = None
    k_z: int = 1
    form: str = "mean"
    cap: float = 4
    over: str | None = None
    weights: str | None = None
    after_pull: str = "literal"

    def __post_init__(self) -> None:
        if (
            self.client not in CLIENTS
            or self.form not in ("mean", "sum")
            or self.after_pull not in ("literal", "reset")
        ):
            raise ValueError(f"unknown client, form or after_pull: {self}")
        if self.over not in (None, "active", "all") or self.weights not in (None, "gamma", "uniform", "samples"):
            raise ValueError(f"unknown over or weights: {self}")
        if self.client == "fedavg" and (self.form == "sum" or self.over == "all"):
            raise ValueError("FedAvg is a mean over the active clients")


class Step(NamedTuple):
    """One entry of a schedule: at `time` the servers of `members` (the due ones, in order of their ids) step together.

    `t` counts aggregations; in the rigorous protocol it is the number of the round. `finish[n]` is when server n's
    current round ends or has ended, before the step (inf: no round left); `start[n]` is when its current round began,
    after the step. Both are the servers' clocks.
    """

    t: int
    time: float
    members: tuple[int, ...]
    finish: tuple[float, ...]
    start: tuple[float, ...]


@dataclass(frozen=True)
class Event:
    """The state right after a step. z is stacked over the servers; x, x_prev, counters over the clients.

    `rounds[n]` is how many of its own rounds server n has finished with a step: the r of its current round. `x` of
    clients whose server has not stepped yet is x^(0). `counters` is FedBCD-I's, else 0.
    """

    step: Step
    z: Array
    x: Array
    x_prev: Array
    rounds: tuple[int, ...]
    counters: tuple[int, ...]

    @property
    def time(self) -> float:
        return self.step.time

    @property
    def members(self) -> tuple[int, ...]:
        return self.step.members


# Clients


class ClientState(NamedTuple):
    """x_i, x_i_prev, what the client sent last, and FedBCD-I's counter of rounds trained since the last contact."""

    x: Array
    x_prev: Array
    sent: Array
    counter: int = 0


def _clip(theta: Array, box: float | None) -> Array:
    return theta if box is None else np.asarray(np.clip(theta, -box, box))


def aspg(
    x: Array,
    x_prev: Array,
    gradient: Gradient,
    steps: int,
    *,
    eta: float,
    zeta: float,
    box: float | None,
) -> tuple[Array, Array]:
    """(4a) and (4b): `steps` steps on gradient(ex, k), the gradient of the local objective on the k-th mini-batch."""
    for k in range(steps):
        ex = x + zeta * (x - x_prev)
        x, x_prev = _clip(ex - eta * gradient(ex, k), box), x
    return x, x_prev


def client_gradient(problem: Problem, i: int, batches: Batches, pull: float, anchor: Array) -> Gradient:
    """The mini-batch gradient of g_i(x) + pull/2 |x - anchor|^2."""

    def gradient(ex: Array, k: int) -> Array:
        _, g = _cross_entropy(ex, problem.x[i][batches[k]], problem.y[i][batches[k]])
        return g + pull * (ex - anchor)

    return gradient


def client_round(
    problem: Problem, rule: Rule, draw: Draw, anchor: Array, states: Mapping[int, ClientState]
) -> dict[int, ClientState]:
    """The new states of the clients that one round of one server changes. `anchor` is z_n when the round began."""
    new = dict[int, ClientState]()
    if rule.client == "fedavg":
        for i in draw.active:
            step = client_gradient(problem, i, draw.batches[i], 0.0, anchor)
            x, _ = aspg(anchor, anchor, step, len(draw.batches[i]), eta=rule.eta_x, zeta=0.0, box=None)
            new[i] = ClientState(x, states[i].x_prev, x)
        return new
    training = draw.active if rule.client == "fedbcd" else draw.offline
    assert training is not None
    for i in training:
        old = states[i]
        if rule.client == "fedbcd_i" and old.counter >= rule.cap:
            continue
        pull = _gamma(rule, i) if rule.client == "fedbcd" else 0.0
        step = client_gradient(problem, i, draw.batches[i], pull, anchor)
        count = len(draw.batches[i])
        x, x_prev = aspg(old.x, old.x_prev, step, count, eta=rule.eta_x, zeta=rule.zeta, box=rule.box)
        offline = rule.client == "fedbcd_i"
        new[i] = ClientState(x, x_prev, old.sent if offline else x, old.counter + 1 if offline else 0)
    if rule.client == "fedbcd_i":
        for i in draw.active:
            x, x_prev, *_ = new.get(i, states[i])
            for _ in range(draw.k(i)):
                x, x_prev = _clip(x - _gamma(rule, i) * (x - anchor), rule.box), x
            new[i] = ClientState(x, x if rule.after_pull == "reset" else x_prev, x, 0)
    return new


def _gamma(rule: Rule, i: int) -> float:
    return float(rule.gamma[i] if isinstance(rule.gamma, Sequence | np.ndarray) else rule.gamma)


# The cloud


def coefficients(problem: Problem, rule: Rule, clients: Sequence[int]) -> Array:
    """c_i of z <- w - eta_z sum_i c_i (w - x_i), over the clients that count."""
    gamma = np.array([_gamma(rule, i) for i in clients])
    if rule.form == "sum":
        return gamma
    kind = rule.weights or {"fedbcd": "gamma", "fedbcd_i": "uniform", "fedavg": "samples"}[rule.client]
    sizes = np.array([len(problem.y[i]) for i in clients], np.float64)
    c = {"gamma": gamma, "uniform": np.ones(len(clients)), "samples": sizes}[kind]
    if not c.sum() > 0:
        raise ValueError("the mean form needs positive weights")
    return np.asarray(c / c.sum())


def check_mixing(a: Array, members: Sequence[int]) -> None:
    """Assumption 3 (doubly stochastic, not negative), and a server that is not due neither gives nor takes."""
    if np.ndim(a) != 2 or a.shape[0] != a.shape[1]:
        raise ValueError("a mixing matrix is square")
    others = [n for n in range(len(a)) if n not in members]
    ones = np.allclose(a.sum(axis=0), 1.0, atol=1e-12) and np.allclose(a.sum(axis=1), 1.0, atol=1e-12)
    if (a < 0).any() or not ones:
        raise ValueError("a mixing matrix is not negative, and its rows and columns sum to 1")
    if not all(a[n, n] == 1.0 for n in others):
        raise ValueError("a server that is not due keeps its model")


def uniform_mixing(servers: int, members: Sequence[int]) -> Array:
    """3.1: a_nm = 1/B for n, m in V^t; a_nn = 1 and a_nm = 0 outside."""
    a = np.eye(servers)
    a[np.ix_(members, members)] = 1.0 / len(members)
    return a


def cloud_step(
    z: Array, a: Array, members: Sequence[int], models: Mapping[int, tuple[Array, Array]], *, eta_z: float, k_z: int
) -> Array:
    """(6a, 6b), K_z times. `models[n]` = (c, x): the coefficients and the stacked models that count at server n."""
    for _ in range(k_z):
        w = np.einsum("nm,m...->n...", a, z)
        z = z.copy()
        for n in members:
            c, x = models[n]
            z[n] = w[n] - eta_z * np.einsum("i,i...->...", c, w[n] - x)
    return z


# Latencies (section 15) and schedules


def earliest(arrival: Mapping[int, float], count: int) -> list[int]:
    """The `count` clients with the shortest arrival time, ties to the lowest id, in order of arrival."""
    return sorted(arrival, key=lambda i: (arrival[i], i))[:count]


def duration(draw: Draw) -> float:
    """tau_n = max over Q_n^r of tau_i = tau_arrival + K_i tau_process (one number) or + the sum of K_i numbers."""
    if draw.tau is not None:
        return float(draw.tau)
    taus = []
    for i in draw.active:
        process = draw.process[i]
        if isinstance(process, Sequence | np.ndarray):
            if len(process) != draw.k(i):
                raise ValueError(f"client {i} needs one processing time per epoch")
            taus.append(draw.arrival[i] + float(np.sum(process)))
        else:
            taus.append(draw.arrival[i] + draw.k(i) * process)
    return float(max(taus))


def durations(draws: Sequence[Sequence[Draw]]) -> list[list[float]]:
    """tau[n][r]."""
    return [[duration(draw) for draw in rounds] for rounds in draws]


def sync_schedule(tau: Sequence[Sequence[float]], rounds: int) -> list[Step]:
    """3.1: a round ends when every server has its quota. tau[n][t] is the duration of round t at server n."""
    steps, now, everyone = list[Step](), 0.0, tuple(range(len(tau)))
    for t in range(rounds):
        finish = tuple(now + own[t] for own in tau)
        now = max(finish)
        steps.append(Step(t, now, everyone, finish, (now,) * len(tau)))
    return steps


def async_schedule(tau: Sequence[Sequence[float]], b: int, events: int) -> list[Step]:
    """3.1, plain Async-cloud. tau[n][r] is the duration of server n's own round r.

    The members of event t are the first `b` of all servers by (finish, id); the event is at the last member's finish.
    Members start their next round there. The others keep their clocks: who runs, runs on, and who has finished (a tie
    at the b-th place) waits with its old finish and so comes first at the next event.
    """
    _check_b(b, len(tau))
    steps, start, done = list[Step](), [0.0] * len(tau), [0] * len(tau)
    for t in range(events):
        finish = tuple(start[n] + tau[n][done[n]] for n in range(len(tau)))
        members = tuple(sorted(_first(finish, b)))
        now = max(finish[n] for n in members)
        for n in members:
            start[n], done[n] = now, done[n] + 1
        steps.append(Step(t, now, members, finish, tuple(start)))
    return steps


def rigorous_schedule(tau: Sequence[Sequence[float]], b: int, rounds: int) -> list[Step]:
    """Appendix A. Rounds have numbers, the same at all servers; tau[n][t] is the duration of round t at server n.

    V^t is the first `b` servers by (finish of round t, id); T^t is the last member's finish. Members step together at
    T^t and start t + 1 there. Every other server steps alone at its own finish, which is at or after T^t, and starts
    t + 1 there, however far the others are. Returned in the order of time, at equal times by round number, the
    aggregation before the lone steps, these by id. Each server steps exactly `rounds` times. A run that would go on has
    the same steps up to the last aggregation T^{rounds-1}; what comes later here lacks the faster servers' next rounds.
    """
    _check_b(b, len(tau))
    everyone = range(len(tau))
    finishes, starts = list[list[float]](), [[0.0] * len(tau)]
    aggregations = list[tuple[float, tuple[int, ...]]]()
    for t in range(rounds):
        finishes.append([starts[t][n] + tau[n][t] for n in everyone])
        members = tuple(sorted(_first(finishes[t], b)))
        now = max(finishes[t][n] for n in members)
        aggregations.append((now, members))
        starts.append([now if n in members else finishes[t][n] for n in everyone])
    order = list[tuple[float, int, int, tuple[int, ...]]]()
    for t, (now, members) in enumerate(aggregations):
        order.append((now, t, -1, members))
        order += [(finishes[t][n], t, n, (n,)) for n in everyone if n not in members]
    steps, done = list[Step](), [0] * len(tau)
    for now, t, _, members in sorted(order):
        finish = tuple(finishes[done[n]][n] if done[n] < rounds else np.inf for n in everyone)
        for n in members:
            done[n] += 1
        steps.append(Step(t, now, members, finish, tuple(starts[done[n]][n] for n in everyone)))
    return steps


def _first(finish: Sequence[float], b: int) -> list[int]:
    return sorted(range(len(finish)), key=lambda n: (finish[n], n))[:b]


def _check_b(b: int, servers: int) -> None:
    if not 1 <= b <= servers:
        raise ValueError(f"B is from 1 to {servers}, got {b}")


# Protocols


def replay(
    problem: Problem,
    servers: Sequence[Sequence[int]],
    z0: Model | Sequence[Model],
    draws: Sequence[Sequence[Draw]],
    rule: Rule,
    schedule: Sequence[Step],
    *,
    mixing: Sequence[Array] | None = None,
    x0: Model | None = None,
) -> list[Event]:
    """Follow any schedule. servers[n] are the client ids of server n; draws[n][r] is its own round r.

    z0 is one model for all servers or one per server. Clients start at x0, without it at their server's z_n^0 (in
    Algorithm 1 these are equal). mixing[e] is the matrix of the e-th step of the schedule (servers x servers, identity
    outside the step's members); without it the members' mean.
    """
    owners = [i for clients in servers for i in clients]
    if sorted(owners) != list(range(len(problem.x))) or not all(servers):
        raise ValueError("every client has exactly one server, and every server has a client")
    z = _stack(z0, len(servers))
    states = dict[int, ClientState]()
    for n, clients in enumerate(servers):
        first = z[n] if x0 is None else _join(x0)
        states.update({i: ClientState(first, first, first) for i in clients})
    anchor, done, events = z.copy(), [0] * len(servers), list[Event]()
    for e, step in enumerate(schedule):
        a = uniform_mixing(len(servers), step.members) if mixing is None else np.asarray(mixing[e], np.float64)
        check_mixing(a, step.members)
        models = dict[int, tuple[Array, Array]]()
        for n in step.members:
            draw = draws[n][done[n]]
            _check_draw(rule, draw, servers[n])
            states.update(client_round(problem, rule, draw, anchor[n], states))
            counted = _counted(rule, draw, servers[n])
            models[n] = coefficients(problem, rule, counted), np.stack([states[i].sent for i in counted])
        z = cloud_step(z, a, step.members, models, eta_z=rule.eta_z, k_z=rule.k_z)
        for n in step.members:
            anchor[n], done[n] = z[n], done[n] + 1
        events.append(_event(step, z, states, done))
    return events


def sync_cloud(
    problem: Problem,
    servers: Sequence[Sequence[int]],
    z0: Model,
    draws: Sequence[Sequence[Draw]],
    rule: Rule,
    rounds: int,
) -> list[Event]:
    """Sync-cloud (5): one z. For the models it is one server with all clients (after Algorithm 1: |V| = 1); the round
    lasts as long as its slowest server. Events show the one z at every server."""
    schedule = sync_schedule(durations(draws), rounds)
    merged = [_merge([own[t] for own in draws]) for t in range(rounds)]
    one = [Step(s.t, s.time, (0,), (s.time,), (s.time,)) for s in schedule]
    events = replay(problem, [[i for clients in servers for i in clients]], z0, [merged], rule, one)
    many = len(servers)
    return [
        replace(event, step=step, z=np.repeat(event.z, many, axis=0), rounds=event.rounds * many)
        for event, step in zip(events, schedule, strict=True)
    ]


def async_cloud(
    problem: Problem,
    servers: Sequence[Sequence[int]],
    z0: Model | Sequence[Model],
    draws: Sequence[Sequence[Draw]],
    rule: Rule,
    b: int,
    events: int,
    *,
    mixing: Sequence[Array] | None = None,
    x0: Model | None = None,
) -> list[Event]:
    """Plain Async-cloud (3.1): `async_schedule`, then `replay`. One event per aggregation."""
    schedule = async_schedule(durations(draws), b, events)
    return replay(problem, servers, z0, draws, rule, schedule, mixing=mixing, x0=x0)


def rigorous_cloud(
    problem: Problem,
    servers: Sequence[Sequence[int]],
    z0: Model | Sequence[Model],
    draws: Sequence[Sequence[Draw]],
    rule: Rule,
    b: int,
    rounds: int,
    *,
    mixing: Sequence[Array] | None = None,
    x0: Model | None = None,
) -> list[Event]:
    """Rigorous Async-cloud (appendix A): `rigorous_schedule`, then `replay`. mixing[t] is for V^t; lone servers step
    from their own z_n. One event per aggregation and one per lone step."""
    schedule = rigorous_schedule(durations(draws), b, rounds)
    matrices = None
    if mixing is not None:
        together = {id(step) for step in _firsts(schedule)}
        matrices = [mixing[step.t] if id(step) in together else np.eye(len(servers)) for step in schedule]
    return replay(problem, servers, z0, draws, rule, schedule, mixing=matrices, x0=x0)


def aggregations(events: Sequence[Event]) -> list[Event]:
    """Of each t the first event: the aggregation of V^t. Not the lone steps of the rigorous protocol."""
    together = {id(step) for step in _firsts([event.step for event in events])}
    return [event for event in events if id(event.step) in together]


def _firsts(schedule: Sequence[Step]) -> list[Step]:
    first = dict[int, Step]()
    for step in schedule:
        first.setdefault(step.t, step)
    return list(first.values())


def _stack(z0: Model | Sequence[Model], servers: int) -> Array:
    one = isinstance(z0, tuple) and len(z0) == 2 and np.ndim(z0[0]) == 2 and np.ndim(z0[1]) == 1
    models = [z0] * servers if one else list(z0)
    if len(models) != servers:
        raise ValueError(f"one z per server: {servers}, got {len(models)}")
    return np.stack([_join(model) for model in models])  # type: ignore[arg-type]


def _counted(rule: Rule, draw: Draw, clients: Sequence[int]) -> list[int]:
    over = rule.over or ("all" if rule.client == "fedbcd" else "active")
    return list(clients) if over == "all" else list(draw.active)


def _check_draw(rule: Rule, draw: Draw, clients: Sequence[int]) -> None:
    if not draw.active or len(set(draw.active)) != len(draw.active) or not set(draw.active) <= set(clients):
        raise ValueError(f"Q is one or more distinct clients of the server, got {draw.active!r}")
    if rule.client == "fedbcd_i":
        offline = draw.offline
        if offline is None or len(set(offline)) != len(offline):
            raise ValueError("FedBCD-I needs Q~, distinct clients")
        if not set(draw.active) <= set(offline) <= set(clients):
            raise ValueError("Q is part of Q~, and Q~ of the server's clients")


def _merge(parts: Sequence[Draw]) -> Draw:
    """The draws of all servers in one round as those of one server."""
    return Draw(
        active=[i for draw in parts for i in draw.active],
        batches={i: batches for draw in parts for i, batches in draw.batches.items()},
        steps={i: draw.k(i) for draw in parts for i in draw.active},
        offline=[i for draw in parts for i in draw.offline or ()],
        tau=0.0,
    )


def _event(step: Step, z: Array, states: Mapping[int, ClientState], done: Sequence[int]) -> Event:
    clients = [states[i] for i in range(len(states))]
    x, x_prev = np.stack([c.x for c in clients]), np.stack([c.x_prev for c in clients])
    return Event(step, z.copy(), x, x_prev, tuple(done), tuple(c.counter for c in clients))


# Order statistics (section 15)


def exponential(mean: float = 1.0) -> Survival:
    return lambda x: np.exp(-x / mean)


def weibull(shape: float, scale: float = 1.0) -> Survival:
    return lambda x: np.exp(-((x / scale) ** shape))


def server_latency(active: int, processing: str = "product", clients: int = 10) -> Survival:
    """P(tau_n > x) of 5.2, footnote 2: tau_n is the largest tau_i of the `active` clients that arrive first.

    With s arrivals of density f(s) = exp(-s/2)/2 and H(y) = P(processing <= y), K uniform on 1..5: given the arrival a
    of the first client that is left out, the active ones are independent with density f/F(a) on [0, a]. Hence, with
    J(x, a) = int_0^a f(s) H(x - s) ds, q active of c clients, C = c! / (q! (c-q-1)!), and F(a)^q cancelling,

    P(tau_n <= x) = C int_0^x f(a) (1 - F(a))^(c-q-1) J(x, a)^q da + C J(x, x)^q (1 - F(x))^(c-q) / (c - q),

    and J(x, x)^c if nobody is left out. `product`: K times one Exp(1); `sum`: K of them.
    """
    if processing not in ("product", "sum") or not 1 <= active <= clients:
        raise ValueError("processing is product or sum, and from 1 to all clients are active")
    q, left = active, clients - active

    def processed(y: Array) -> Array:
        if processing == "product":
            return np.asarray(1.0 - np.mean([np.exp(-y / k) for k in range(1, 6)], axis=0))
        tails = np.cumsum([np.exp(-y) * y**j / factorial(j) for j in range(5)], axis=0)
        return np.asarray(1.0 - np.mean(tails, axis=0))

    def joint(x: float, a: Array) -> Array:
        """J(x, a), for a vector a."""
        s, weight = _nodes(_panels(1.0, float(x), 3.0))
        s, weight = s / x, weight / x  # of [0, 1], then stretched to every [0, a]
        points = a[:, None] * s
        return np.asarray(a * ((0.5 * np.exp(-points / 2) * processed(x - points)) @ weight))

    def below(x: float) -> float:
        if x <= 0:
            return 0.0
        whole = float(joint(x, np.array([x]))[0])
        if left == 0:
            return whole**q
        a, weight = _nodes(_panels(1.0, float(x)))
        inside = 0.5 * np.exp(-a / 2) * np.exp(-a / 2 * (left - 1)) * joint(x, a) ** q
        constant = factorial(clients) / (factorial(q) * factorial(left - 1))
        return constant * float(inside @ weight + whole**q * np.exp(-x / 2 * left) / left)

    return lambda x: np.array([1.0 - below(float(value)) for value in np.ravel(x)]).reshape(np.shape(x))


def order_statistic_mean(distribution: Survival, b: int, n: int) -> float:
    """E tau_(b) of n independent draws: the integral over x of P(tau_(b) > x) = P(fewer than b of n are <= x)."""
    return order_statistic_means(distribution, [b], n)[0]


def order_statistic_means(distribution: Survival, bs: Sequence[int], n: int) -> list[float]:
    """`order_statistic_mean` for several b, with one evaluation of the distribution. The mean of all n is E tau."""
    top = 1.0
    while float(distribution(np.array([top]))[0]) > 1e-15:
        top *= 2.0
        if top > 1e12:
            raise ValueError("the tail does not vanish: not a survival function")
    x, weight = _nodes(_panels(1e-8 * top, top))
    above = np.clip(distribution(x), 0.0, 1.0)
    terms = np.array([comb(n, j) * (1.0 - above) ** j * above ** (n - j) for j in range(n)])
    return [float(terms[:b].sum(axis=0) @ weight) for b in bs]


def latency_ratio(distribution: Survival, b: int, n: int) -> float:
    """(7): r_{B,N} = E tau_(B) / E tau_(N)."""
    some, slowest = order_statistic_means(distribution, [b, n], n)
    return some / slowest


def reference_table(
    processing: str = "product", actives: Sequence[int] = (3, 5, 6), bs: Sequence[int] = (3, 5, 7), servers: int = 10
) -> dict[int, dict[str, float]]:
    """Per |Q|: `mean` = E tau_n, `sync` = E of the slowest of the servers, and `r3`, `r5`, `r7` = r_{B,N}."""
    table = dict[int, dict[str, float]]()
    for active in actives:
        means = order_statistic_means(server_latency(active, processing), range(1, servers + 1), servers)
        ratios = {f"r{b}": means[b - 1] / means[-1] for b in bs}
        table[active] = {"mean": float(np.mean(means)), "sync": means[-1], **ratios}
    return table


def _panels(first: float, top: float, factor: float = 2.0) -> Array:
    """0, first, first * factor, ... up to top."""
    edges = [0.0]
    edge = first
    while edge < top:
        edges.append(edge)
        edge *= factor
    return np.array([*edges, top])


def _nodes(edges: Array, order: int = 16) -> tuple[Array, Array]:
    """Gauss-Legendre nodes and weights on the panels between the edges."""
    unit, weight = np.polynomial.legendre.leggauss(order)
    half = np.diff(edges)[:, None] / 2
    return (edges[:-1, None] + half * (unit + 1)).ravel(), (half * weight).ravel()
