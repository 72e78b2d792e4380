"""Self-checks of the oracle `clouds`: timing worked out on paper, the protocols' limits, and exact order statistics.

Three servers with two clients each, if not said otherwise.
"""

from dataclasses import replace
from math import comb, factorial, gamma

import numpy as np
import pytest
from scipy import integrate, stats

from tests.oracles import blocks, clouds, rounds
from tests.oracles.clouds import Draw, Rule
from tests.oracles.rounds import Local, Model, Problem

CLASSES, FEATURES = 3, 4
SERVERS = [[0, 3], [1, 4], [2, 5]]
BCD = Rule("fedbcd", eta_x=0.2, eta_z=0.5, gamma=0.7, zeta=0.6, box=1.5)
BCD_I = Rule("fedbcd_i", eta_x=0.2, eta_z=0.5, gamma=0.3, zeta=0.6, box=1.5, cap=2)
AVG = Rule("fedavg", eta_x=0.2, eta_z=1.0)
RULES = [pytest.param(rule, id=rule.client) for rule in (BCD, BCD_I, AVG)]


def make_problem(seed: int = 1, sizes: tuple[int, ...] = (6,) * 6) -> Problem:
    rng = np.random.default_rng(seed)
    x = [rng.normal(i / 3, 1.0, (n, FEATURES)) for i, n in enumerate(sizes)]
    return Problem(x, [rng.integers(CLASSES, size=n) for n in sizes], CLASSES)


def make_model(seed: int = 2) -> Model:
    rng = np.random.default_rng(seed)
    return rng.normal(scale=0.5, size=(CLASSES, FEATURES)), rng.normal(scale=0.5, size=CLASSES)


def constant(value: float) -> Model:
    return np.full((CLASSES, FEATURES), value), np.full(CLASSES, value)


def joined(model: Model) -> np.ndarray:
    return np.concatenate([model[0], model[1][:, None]], axis=1)


def make_draws(
    problem: Problem,
    servers: list[list[int]] = SERVERS,
    count: int = 6,
    active: int = 1,
    seed: int = 3,
    tau: list[list[float]] | None = None,
) -> list[list[Draw]]:
    """Random clients, batches, K in 1..3 and latencies. All clients of a server are in Q~."""
    rng = np.random.default_rng(seed)

    def one(clients: list[int], given: float | None) -> Draw:
        steps = {i: int(rng.integers(1, 4)) for i in clients}
        batches = {i: [rng.integers(len(problem.y[i]), size=3) for _ in range(steps[i])] for i in clients}
        arrival = {i: float(rng.exponential(2.0)) for i in clients}
        process = {i: float(rng.exponential(1.0)) for i in clients}
        return Draw(clouds.earliest(arrival, active), batches, steps, clients, arrival, process, given)

    given = tau or [[None] * count for _ in servers]  # type: ignore[list-item]
    return [[one(clients, value) for value in own] for clients, own in zip(servers, given, strict=True)]


def same(a: list[clouds.Event], b: list[clouds.Event], tolerance: float = 0.0) -> None:
    assert len(a) == len(b)
    for left, right in zip(a, b, strict=True):
        assert left.step == right.step
        assert left.counters == right.counters
        for name in ("z", "x", "x_prev"):
            np.testing.assert_allclose(getattr(left, name), getattr(right, name), rtol=0, atol=tolerance)


# Timing, on paper


TAU = [[1.0, 2.0, 2.0, 3.0], [2.0, 4.0, 1.0, 1.0], [5.0, 1.0, 1.0]]
# Plain, B = 2. In brackets the round that ends; the first two by (finish, id) are the members.
#   event 0: finishes 1 [0], 2 [0], 5 [0]  -> servers 0, 1 at 2; both start round 1 at 2, server 2 runs on
#   event 1: finishes 4 [1], 6 [1], 5 [0]  -> servers 0, 2 at 5 (server 0 waited from 4); server 1 runs on
#   event 2: finishes 7 [2], 6 [1], 6 [1]  -> servers 1, 2 at 6
#   event 3: finishes 7 [2], 7 [2], 7 [2]  -> a tie: the lowest ids 0, 1 at 7; server 2 has finished and waits
#   event 4: finishes 10 [3], 8 [3], 7 [2] -> servers 1, 2 at 8; server 2 kept its finish 7 and its start 6 until then
PLAIN = [
    (0, 2.0, (0, 1), (1.0, 2.0, 5.0), (2.0, 2.0, 0.0)),
    (1, 5.0, (0, 2), (4.0, 6.0, 5.0), (5.0, 2.0, 5.0)),
    (2, 6.0, (1, 2), (7.0, 6.0, 6.0), (5.0, 6.0, 6.0)),
    (3, 7.0, (0, 1), (7.0, 7.0, 7.0), (7.0, 7.0, 6.0)),
    (4, 8.0, (1, 2), (10.0, 8.0, 7.0), (7.0, 8.0, 8.0)),
]

STRAGGLER = [[1.0, 2.0, 2.0], [2.0, 2.0, 6.0], [5.0, 1.0, 1.0]]
# Rigorous, B = 2.
#   t = 0: finishes 1, 2, 5                  -> V = {0, 1}, T = 2; server 2 alone at 5. Round 1 begins at 2, 2, 5.
#   t = 1: finishes 2+2, 2+2, 5+1 = 4, 4, 6  -> V = {0, 1}, T = 4, while server 2 is in round 0; it is alone at 6.
#   t = 2: finishes 4+2, 4+6, 6+1 = 6, 10, 7 -> V = {0, 2}, T = 7; server 1 alone at 10. Round 3 begins at 7, 10, 7.
INF = np.inf
RIGOROUS = [
    (0, 2.0, (0, 1), (1.0, 2.0, 5.0), (2.0, 2.0, 0.0)),
    (1, 4.0, (0, 1), (4.0, 4.0, 5.0), (4.0, 4.0, 0.0)),
    (0, 5.0, (2,), (6.0, 10.0, 5.0), (4.0, 4.0, 5.0)),
    (1, 6.0, (2,), (6.0, 10.0, 6.0), (4.0, 4.0, 6.0)),
    (2, 7.0, (0, 2), (6.0, 10.0, 7.0), (7.0, 4.0, 7.0)),
    (2, 10.0, (1,), (INF, 10.0, INF), (7.0, 10.0, 7.0)),
]


def test_plain_timing_is_the_one_on_paper():
    assert [tuple(step) for step in clouds.async_schedule(TAU, 2, 5)] == PLAIN


def test_rigorous_timing_is_the_one_on_paper():
    assert [tuple(step) for step in clouds.rigorous_schedule(STRAGGLER, 2, 3)] == RIGOROUS


def test_a_tie_in_the_rigorous_protocol_leaves_the_higher_id_alone_at_the_same_time():
    steps = clouds.rigorous_schedule([[3.0], [1.0], [3.0], [3.0]], 2, 1)
    assert [(s.time, s.members) for s in steps] == [(3.0, (0, 1)), (3.0, (2,)), (3.0, (3,))]


def test_sync_timing_is_the_sum_of_the_slowest():
    steps = clouds.sync_schedule(TAU, 3)
    assert [s.time for s in steps] == [5.0, 9.0, 11.0]
    assert steps[1].finish == (7.0, 9.0, 6.0)
    assert all(s.members == (0, 1, 2) for s in steps)


def test_models_of_the_timing_examples_are_the_ones_on_paper():
    """Clients that do not move (eta_x = 0) stay at z_n^0 = 0, 3, 12, so z_n <- (w + z_n^0) / 2."""
    problem, z0 = make_problem(), [constant(0.0), constant(3.0), constant(12.0)]
    rule = Rule("fedbcd", eta_x=0.0, eta_z=0.5)
    plain = clouds.async_cloud(problem, SERVERS, z0, make_draws(problem, tau=TAU), rule, 2, 3)
    # w = (0 + 3)/2 = 1.5; w = (0.75 + 12)/2 = 6.375; w = (2.25 + 9.1875)/2 = 5.71875
    expected = [(0.75, 2.25, 12.0), (3.1875, 2.25, 9.1875), (3.1875, 4.359375, 8.859375)]
    assert [tuple(event.z[:, 0, 0]) for event in plain] == expected
    rigorous = clouds.rigorous_cloud(problem, SERVERS, z0, make_draws(problem, tau=STRAGGLER), rule, 2, 3)
    # t=0 {0,1}: w = 1.5; t=1 {0,1}: w = 1.5 again; server 2 alone: (12 + 12)/2, twice; t=2 {0,2}: w = 6.375;
    # server 1 alone: w = 2.25, (2.25 + 3)/2
    expected = [(0.75, 2.25, 12.0)] * 4 + [(3.1875, 2.25, 9.1875), (3.1875, 2.625, 9.1875)]
    assert [tuple(event.z[:, 0, 0]) for event in rigorous] == expected
    assert all((event.z == event.z[:, :1, :1]).all() for event in [*plain, *rigorous])


# Which z_n the clients see


def test_a_server_that_waits_trains_against_the_model_it_began_with():
    """Server 1's round 1 begins at event 0 and ends with event 2; event 1 happens without it."""
    problem, draws = make_problem(), make_draws(make_problem(), tau=TAU)
    rule = Rule("fedbcd", eta_x=0.2, eta_z=0.5, gamma=0.7)
    z0 = [make_model(seed) for seed in (10, 11, 12)]
    events = clouds.async_cloud(problem, SERVERS, z0, draws, rule, 2, 3)
    draw = draws[1][1]
    (i,) = draw.active
    x, anchor = events[1].x[i], events[0].z[1]
    np.testing.assert_array_equal(anchor, events[1].z[1])
    assert not np.allclose(events[2].z[1], anchor)
    for batch in draw.batches[i]:
        weight, bias = rounds.loss_and_gradient((x[:, :-1], x[:, -1]), problem.x[i][batch], problem.y[i][batch])[1]
        x = x - 0.2 * (joined((weight, bias)) + 0.7 * (x - anchor))
    np.testing.assert_allclose(events[2].x[i], x, rtol=0, atol=1e-14)


@pytest.mark.parametrize("rule", RULES)
def test_what_others_do_meanwhile_does_not_reach_a_round(rule):
    """Server 2 first steps in event 1, after event 0 of the others: their data changes its z then, not its clients."""
    problem, other, draws = make_problem(), make_problem(), make_draws(make_problem(), tau=TAU)
    for i in (0, 1, 3, 4):
        other.x[i] = -other.x[i]
    rule = replace(rule, eta_z=0.5)  # at 1 the mean form forgets w
    a = clouds.async_cloud(problem, SERVERS, make_model(), draws, rule, 2, 2)
    b = clouds.async_cloud(other, SERVERS, make_model(), draws, rule, 2, 2)
    np.testing.assert_array_equal(a[1].x[[2, 5]], b[1].x[[2, 5]])
    assert not np.allclose(a[1].x[[0, 3]], b[1].x[[0, 3]])
    assert not np.allclose(a[1].z[2], b[1].z[2])


@pytest.mark.parametrize("rule", RULES)
def test_nothing_changes_at_a_server_that_is_not_a_member(rule):
    problem = make_problem()
    z0 = [make_model(seed) for seed in (10, 11, 12)]
    events = clouds.async_cloud(problem, SERVERS, z0, make_draws(problem, count=9), rule, 2, 9)
    for before, after in zip(events, events[1:], strict=False):
        for n in set(range(3)) - set(after.members):
            np.testing.assert_array_equal(before.z[n], after.z[n])
            np.testing.assert_array_equal(before.x[SERVERS[n]], after.x[SERVERS[n]])
            np.testing.assert_array_equal(before.x_prev[SERVERS[n]], after.x_prev[SERVERS[n]])
            assert before.step.start[n] == after.step.start[n]
            assert before.rounds[n] == after.rounds[n]


# Mixing


def test_the_given_matrix_of_the_members_mean_changes_nothing():
    problem = make_problem()
    draws = make_draws(problem)
    a = clouds.async_cloud(problem, SERVERS, make_model(), draws, BCD, 2, 6)
    mixing = [clouds.uniform_mixing(3, event.members) for event in a]
    same(a, clouds.async_cloud(problem, SERVERS, make_model(), draws, BCD, 2, 6, mixing=mixing))


@pytest.mark.parametrize(
    "a",
    [
        [[0.5, 0.5, 0.0], [0.4, 0.6, 0.0], [0.0, 0.0, 1.0]],  # a column sums to 0.9
        [[1.2, -0.2, 0.0], [-0.2, 1.2, 0.0], [0.0, 0.0, 1.0]],
        [[0.5, 0.0, 0.5], [0.0, 1.0, 0.0], [0.5, 0.0, 0.5]],  # server 2 is not due
    ],
)
def test_a_matrix_that_is_not_allowed_is_refused(a):
    with pytest.raises(ValueError, match="mixing matrix|not due"):
        clouds.check_mixing(np.array(a), (0, 1))


@pytest.mark.parametrize("rule", RULES)
def test_at_rate_one_the_mean_form_forgets_the_other_servers(rule):
    """z_n = w - 1 (w - m_n) = m_n: (6b) subtracts the whole of w, so mixing alone tells no server of another."""
    problem, other, draws = make_problem(), make_problem(), make_draws(make_problem(), tau=TAU)
    for i in (0, 1, 3, 4):
        other.x[i] = -other.x[i]
    rule = replace(rule, eta_z=1.0)
    a = clouds.async_cloud(problem, SERVERS, make_model(), draws, rule, 2, 5)
    b = clouds.async_cloud(other, SERVERS, make_model(), draws, rule, 2, 5)
    np.testing.assert_allclose(a[-1].z[2], b[-1].z[2], rtol=0, atol=1e-14)
    np.testing.assert_allclose(a[-1].x[[2, 5]], b[-1].x[[2, 5]], rtol=0, atol=1e-14)


def test_with_many_inner_iterations_the_members_reach_the_fixed_point_of_the_cloud_step():
    """z_n = w - eta (w - m_n), w = mean of z: the mean of z is the mean of m_n, m_n the gamma-weighted mean of x_i."""
    problem, gammas = make_problem(), [0.5, 1.0, 2.0, 1.5, 0.2, 3.0]
    rule = Rule("fedbcd", eta_x=0.2, eta_z=0.4, gamma=gammas, k_z=200)
    z0 = [make_model(seed) for seed in (10, 11, 12)]
    (event,) = clouds.async_cloud(problem, SERVERS, z0, make_draws(problem), rule, 2, 1)
    m = [np.average(event.x[SERVERS[n]], axis=0, weights=[gammas[i] for i in SERVERS[n]]) for n in event.members]
    w = np.mean(m, axis=0)
    for n, target in zip(event.members, m, strict=True):
        np.testing.assert_allclose(event.z[n], 0.6 * w + 0.4 * target, rtol=0, atol=1e-12)


# Limits


def run_all(problem: Problem, servers: list[list[int]], draws: list[list[Draw]], rule: Rule, count: int) -> list:
    z0 = make_model()
    return [
        clouds.sync_cloud(problem, servers, z0, draws, rule, count),
        clouds.async_cloud(problem, servers, z0, draws, rule, len(servers), count),
        clouds.rigorous_cloud(problem, servers, z0, draws, rule, len(servers), count),
    ]


def flat(problem: Problem, draws: list[list[Draw]], rule: Rule, count: int) -> rounds.Trace:
    """The same draws for the flat oracles `blocks` and `rounds`, with one server."""
    local = Local(lr=rule.eta_x)
    cohorts = [[i for own in draws for i in own[t].active] for t in range(count)]
    plan = [{i: b for own in draws for i, b in own[t].batches.items()} for t in range(count)]
    z0, common = make_model(), {"extrapolation": rule.zeta, "server_lr": rule.eta_z, "box": rule.box}
    if rule.client == "fedbcd":
        return blocks.fedbcd(problem, z0, cohorts, plan, local, prox=rule.gamma, server_sum=rule.form, **common)
    if rule.client == "fedavg":
        return rounds.fedavg(problem, z0, cohorts, plan, local)
    offline = [[i for own in draws for i in own[t].offline] for t in range(count)]
    pulls = [{i: k for own in draws for i, k in own[t].steps.items()} for t in range(count)]
    more = {"offline": offline, "pulls": pulls, "cap": rule.cap, **common}
    return blocks.fedbcd_i(problem, z0, cohorts, plan, local, pull=rule.gamma, **more)


@pytest.mark.parametrize("rule", [*RULES, pytest.param(Rule("fedbcd", 0.2, 0.1, 0.7, 0.6, 1.5, form="sum"), id="sum")])
def test_one_server_is_the_flat_algorithm_under_every_protocol(rule):
    problem, servers = make_problem(sizes=(5, 9, 7, 12)), [[2, 0, 3, 1]]
    draws = make_draws(problem, servers, count=8, active=2)
    expected = flat(problem, draws, rule, 8)
    for events in run_all(problem, servers, draws, rule, 8):
        for t, event in enumerate(events):
            z = joined((expected.weight[t + 1], expected.bias[t + 1]))
            np.testing.assert_allclose(event.z[0], z, rtol=0, atol=1e-13)
            assert event.time == pytest.approx(sum(clouds.durations(draws)[0][: t + 1]))
        for i, model in expected.local.items():
            np.testing.assert_allclose(events[-1].x[i], joined(model), rtol=0, atol=1e-13)
        for i, model in getattr(expected, "control", {}).items():
            np.testing.assert_allclose(events[-1].x_prev[i], joined(model), rtol=0, atol=1e-13)
        if rule.client == "fedbcd_i":
            assert [event.counters for event in events] == [tuple(c) for c in expected.counters]
            assert max(max(event.counters) for event in events) == rule.cap


@pytest.mark.parametrize("rule", RULES)
def test_sync_cloud_is_the_flat_algorithm_on_all_clients(rule):
    problem = make_problem(sizes=(5, 9, 7, 12, 4, 6))
    draws = make_draws(problem)
    expected = flat(problem, draws, rule, 6)
    for t, event in enumerate(clouds.sync_cloud(problem, SERVERS, make_model(), draws, rule, 6)):
        z = joined((expected.weight[t + 1], expected.bias[t + 1]))
        np.testing.assert_allclose(event.z, np.stack([z] * 3), rtol=0, atol=1e-13)


def test_in_sum_form_the_mean_moves_as_one_server_at_a_rate_divided_by_the_servers():
    problem = make_problem()
    draws = make_draws(problem)
    at = {rate: Rule("fedbcd", 0.2, rate, gamma=0.7, zeta=0.6, form="sum") for rate in (0.3, 0.1)}
    plain = clouds.async_cloud(problem, SERVERS, make_model(), draws, at[0.3], 3, 1)
    sync = clouds.sync_cloud(problem, SERVERS, make_model(), draws, at[0.1], 1)
    np.testing.assert_allclose(plain[0].z.mean(axis=0), sync[0].z[0], rtol=0, atol=1e-14)


def test_sum_form_is_mean_form_at_a_rate_divided_by_the_sum_of_gamma():
    problem, gammas = make_problem(), [0.5, 1.0, 2.0, 1.5, 2.0, 1.0]  # servers: 2, 3, 3
    draws = make_draws(problem)
    mean = Rule("fedbcd", 0.2, 0.6, gamma=gammas)
    total = Rule("fedbcd", 0.2, 0.2, gamma=gammas, form="sum")
    a = clouds.async_cloud(problem, SERVERS, make_model(), draws, mean, 3, 1)
    b = clouds.async_cloud(problem, SERVERS, make_model(), draws, total, 3, 1)
    np.testing.assert_allclose(a[0].z[1:], b[0].z[1:], rtol=0, atol=1e-14)
    assert not np.allclose(a[0].z[0], b[0].z[0])


def test_rigorous_steps_every_server_once_per_round_and_is_algorithm_1_in_lockstep():
    """Time only orders the steps: round by round it is Algorithm 1 with the mean inside V^t and identity outside."""
    problem, count = make_problem(), 7
    draws = make_draws(problem, count=count)
    z0 = [make_model(seed) for seed in (10, 11, 12)]
    events = clouds.rigorous_cloud(problem, SERVERS, z0, draws, BCD, 2, count)
    for t in range(count):
        steps = [event for event in events if event.step.t == t]
        assert sorted(n for event in steps for n in event.members) == [0, 1, 2]
        assert [len(event.members) for event in steps] == [2, 1]
        assert steps[0].time <= steps[1].time
    assert events[-1].rounds == (count,) * 3
    times = [event.time for event in events]
    assert times == sorted(times)
    together = clouds.aggregations(events)
    mixing = [clouds.uniform_mixing(3, event.members) for event in together]
    assert len({event.members for event in together}) > 1
    lockstep = clouds.async_cloud(problem, SERVERS, z0, draws, BCD, 3, count, mixing=mixing)
    for event in events:
        for n in event.members:
            np.testing.assert_allclose(event.z[n], lockstep[event.step.t].z[n], rtol=0, atol=1e-14)
    np.testing.assert_allclose(events[-1].x, lockstep[-1].x, rtol=0, atol=1e-14)


def test_plain_is_algorithm_1_with_the_idle_servers_frozen():
    """3.1: eta_z = 0 and Q = {} outside V^t. The server's draws wait for it."""
    problem, events = make_problem(), 6
    draws = make_draws(problem, count=events)
    run = clouds.async_cloud(problem, SERVERS, make_model(), draws, BCD, 2, events)
    used = [0, 0, 0]
    for event in run:
        for n in event.members:
            used[n] += 1
        assert event.rounds == tuple(used)
    assert sum(used) == 2 * events
    finishes = [event.step.finish for event in run]
    for event, finish in zip(run, finishes, strict=True):
        others = [finish[n] for n in range(3) if n not in event.members]
        assert event.time <= min(others)
        assert event.time == max(finish[n] for n in event.members)


# Clients, by hand


def test_without_momentum_and_box_a_step_is_a_proximal_sgd_step():
    problem = make_problem()
    (z0, start), rows = (make_model(1), make_model(2)), np.array([0, 4, 1])
    draw = Draw([0], {0: [rows]}, tau=1.0)
    rule = Rule("fedbcd", eta_x=0.25, eta_z=0.5, gamma=2.0)
    one = Problem(problem.x[:1], problem.y[:1], CLASSES)
    (event,) = clouds.async_cloud(one, [[0]], z0, [[draw]], rule, 1, 1, x0=start)
    weight, bias = np.zeros((CLASSES, FEATURES)), np.zeros(CLASSES)
    for row in rows:  # the gradient, one sample and one class at a time
        sample, label = problem.x[0][row], problem.y[0][row]
        scores = [np.exp(start[0][c] @ sample + start[1][c]) for c in range(CLASSES)]
        for c in range(CLASSES):
            error = scores[c] / sum(scores) - (c == label)
            weight[c] += error * sample / 3
            bias[c] += error / 3
    x, z = joined(start), joined(z0)
    expected = x - 0.25 * (joined((weight, bias)) + 2.0 * (x - z))
    np.testing.assert_allclose(event.x[0], expected, rtol=0, atol=1e-14)
    np.testing.assert_array_equal(event.x_prev[0], x)
    np.testing.assert_allclose(event.z[0], (z + expected) / 2, rtol=0, atol=1e-14)


def test_momentum_goes_on_in_the_next_active_round_and_the_box_holds():
    """Two rounds of K = 2 with eta_z = 0 are one round of K = 4, whatever rounds of others lie between."""
    problem = make_problem(sizes=(6, 6))
    rows = [np.array([k, k + 1]) for k in range(4)]
    rule = Rule("fedbcd", eta_x=0.5, eta_z=0.0, gamma=0.7, zeta=0.9, box=0.6)
    other = Draw([1], {1: rows}, tau=1.0)
    single = [[Draw([0], {0: rows}, tau=1.0)]]
    twice = [[Draw([0], {0: rows[:2]}, tau=1.0), other, other, Draw([0], {0: rows[2:]}, tau=1.0)]]
    (a,) = clouds.async_cloud(problem, [[0, 1]], make_model(), single, rule, 1, 1)
    b = clouds.async_cloud(problem, [[0, 1]], make_model(), twice, rule, 1, 4)[-1]
    np.testing.assert_array_equal(a.x[0], b.x[0])
    np.testing.assert_array_equal(a.x_prev[0], b.x_prev[0])
    assert np.abs(a.x[0]).max() == 0.6


def test_fedbcd_counts_stale_models_and_fedbcd_i_does_not():
    problem, z0 = make_problem(), make_model()
    draws = make_draws(problem)
    (bcd,) = clouds.async_cloud(problem, SERVERS, z0, draws, BCD, 3, 1)
    (bcd_i,) = clouds.async_cloud(problem, SERVERS, z0, draws, BCD_I, 3, 1)
    for n, clients in enumerate(SERVERS):
        (i,) = draws[n][0].active
        (idle,) = set(clients) - {i}
        np.testing.assert_array_equal(bcd.x[idle], joined(z0))
        np.testing.assert_allclose(bcd.z[n], (joined(z0) + (joined(z0) + bcd.x[i]) / 2) / 2, rtol=0, atol=1e-14)
        assert not np.allclose(bcd_i.x[idle], joined(z0))
        np.testing.assert_allclose(bcd_i.z[n], (joined(z0) + bcd_i.x[i]) / 2, rtol=0, atol=1e-14)


def test_the_pull_has_its_closed_form_and_gamma_one_gives_the_servers_model():
    problem, z0, start = make_problem(), make_model(), make_model(7)
    draws = make_draws(problem, active=2)
    distance = joined(start) - joined(z0)
    for pull in (0.2, 1.0):
        rule = Rule("fedbcd_i", eta_x=0.0, eta_z=0.5, gamma=pull)
        (event,) = clouds.async_cloud(problem, SERVERS, z0, draws, rule, 3, 1, x0=start)
        for n, clients in enumerate(SERVERS):
            for i in clients:
                k = draws[n][0].k(i)
                np.testing.assert_allclose(event.x[i], joined(z0) + (1 - pull) ** k * distance, rtol=0, atol=1e-14)
                before = joined(z0) + (1 - pull) ** (k - 1) * distance
                np.testing.assert_allclose(event.x_prev[i], before, rtol=0, atol=1e-14)


def test_offline_clients_stop_at_the_cap_and_counters_follow_the_servers_own_rounds():
    problem = make_problem()
    rng = np.random.default_rng(0)
    batches = {i: [rng.integers(6, size=2)] for i in range(6)}
    quotas = [[0, 0, 0, 0, 3, 0, 0, 0], [1] * 8, [2] * 8]
    draws = [[Draw([i], batches, None, SERVERS[n], tau=1.0 + n) for i in quotas[n]] for n in range(3)]
    events = clouds.async_cloud(problem, SERVERS, make_model(), draws, BCD_I, 1, 10)
    own = [event for event in events if event.members == (0,)]
    assert [event.counters[3] for event in own[:5]] == [1, 2, 2, 2, 0]  # cap = 2
    assert not np.allclose(own[0].x[3], own[1].x[3])
    np.testing.assert_array_equal(own[1].x[3], own[3].x[3])
    assert not np.allclose(own[3].x[3], own[4].x[3])
    for event in events:
        assert event.counters[5] == min(event.rounds[2], 2)


def test_fedavg_with_rate_one_replaces_the_model_by_the_mean_over_samples():
    problem = make_problem(sizes=(5, 9, 7, 12, 4, 6))
    (event,) = clouds.async_cloud(problem, SERVERS, make_model(), make_draws(problem, active=2), AVG, 2, 1)
    for n in event.members:
        sizes = [len(problem.y[i]) for i in SERVERS[n]]
        np.testing.assert_allclose(event.z[n], np.average(event.x[SERVERS[n]], axis=0, weights=sizes), atol=1e-14)


# Latencies


def test_a_server_waits_for_its_slowest_active_client():
    batches = {i: [np.array([0])] * 2 for i in range(3)}
    arrival = {0: 4.0, 1: 1.0, 2: 1.0}
    assert clouds.earliest(arrival, 2) == [1, 2]
    steps = {0: 1, 1: 3, 2: 2}
    draw = Draw([1, 2], batches, steps, None, arrival, {0: 9.0, 1: 0.5, 2: 1.0})
    assert clouds.duration(draw) == 3.0  # max(1 + 3 * 0.5, 1 + 2 * 1)
    draw = Draw([1, 2], batches, steps, None, arrival, {1: [0.5, 1.0, 2.0], 2: [1.0, 1.0]})
    assert clouds.duration(draw) == 4.5


@pytest.mark.parametrize(("b", "expected"), [(1, 0.034142), (3, 0.114754), (5, 0.220431), (7, 0.374069), (10, 1.0)])
def test_exponential_order_statistics_are_harmonic(b, expected):
    harmonic = sum(1 / k for k in range(10 - b + 1, 11))
    assert clouds.order_statistic_mean(clouds.exponential(2.0), b, 10) == pytest.approx(2.0 * harmonic, rel=1e-12)
    assert clouds.latency_ratio(clouds.exponential(2.0), b, 10) == pytest.approx(expected, abs=5e-7)


@pytest.mark.parametrize(("shape", "expected"), [(0.5, (0.0149, 0.0497, 0.1371)), (2.0, (0.3318, 0.4674, 0.6127))])
def test_weibull_order_statistics_by_three_ways(shape, expected):
    """Against the printed ratios, the alternating series, and the quantile under the Beta(b, n-b+1) weight."""
    tail = clouds.weibull(shape, 1.7)
    for b, ratio in zip((3, 5, 7), expected, strict=True):
        assert clouds.latency_ratio(tail, b, 10) == pytest.approx(ratio, abs=6e-5)
        mean = clouds.order_statistic_mean(tail, b, 10)
        power = -(1 + 1 / shape)
        terms = sum((-1) ** j * comb(b - 1, j) * (10 - b + 1 + j) ** power for j in range(b))
        front = factorial(10) / (factorial(b - 1) * factorial(10 - b))
        assert mean == pytest.approx(1.7 * gamma(1 + 1 / shape) * front * terms, rel=1e-9)
        value, _ = integrate.quad(
            lambda u, b=b: stats.weibull_min.ppf(u, shape, scale=1.7) * stats.beta.pdf(u, b, 11 - b), 0, 1
        )
        assert mean == pytest.approx(value, rel=1e-7)


@pytest.mark.parametrize("processing", ["product", "sum"])
@pytest.mark.parametrize(("clients", "arrival"), [(1, 2.0), (10, 0.2)])
def test_latency_of_one_active_client_is_the_first_arrival_and_three_epochs(processing, clients, arrival):
    tail = clouds.server_latency(1, processing, clients)
    assert clouds.order_statistic_mean(tail, 1, 1) == pytest.approx(arrival + 3.0, rel=1e-10)


@pytest.mark.parametrize(("active", "clients"), [(2, 4), (3, 3)])
@pytest.mark.parametrize("processing", ["product", "sum"])
def test_latency_distribution_agrees_with_draws(processing, active, clients):
    rng, count = np.random.default_rng(4), 100_000
    arrival = np.sort(rng.exponential(2.0, (count, clients)), axis=1)[:, :active]
    k = rng.integers(1, 6, (count, active))
    process = k * rng.exponential(1.0, k.shape) if processing == "product" else rng.gamma(k)
    tau = (arrival + process).max(axis=1)
    x = np.array([0.5, 2.0, 4.0, 8.0, 16.0])
    p = clouds.server_latency(active, processing, clients)(x)
    share = (tau[:, None] > x).mean(axis=0)
    assert (np.abs(share - p) < 4.5 * np.sqrt(p * (1 - p) / count) + 1e-12).all()


# |Q|: E tau, Sync, r for B = 3, 5, 7, as printed in section 15.
PRODUCT = {
    3: "6.30 15.001 0.220 0.322 0.4578",
    5: "8.285 17.504 0.2868 0.3881 0.5163",
    6: "9.11 18.488 0.313 0.412 0.5368",
}
SUM = {3: "5.40 9.254 0.418 0.529 0.649"}


@pytest.mark.parametrize(("processing", "printed"), [("product", PRODUCT), ("sum", SUM)])
def test_reference_table(processing, printed):
    """To one unit of the last printed digit: four entries are not rounded to nearest (see the next test)."""
    table = clouds.reference_table(processing, tuple(printed))
    for active, row in printed.items():
        for value, number in zip(table[active].values(), row.split(), strict=True):
            assert value == pytest.approx(float(number), abs=10.0 ** -len(number.split(".")[1]))


@pytest.mark.parametrize(
    ("processing", "active", "expected"),
    [
        ("product", 3, (6.305035, 15.000874, 0.219944, 0.321707, 0.457795)),
        ("product", 6, (9.114558, 18.487852, 0.312381, 0.412231, 0.536794)),
        ("sum", 3, (5.397187, 9.253565, 0.418687, 0.529945, 0.649253)),
    ],
)
def test_more_digits_of_the_reference_table(processing, active, expected):
    """Section 15 prints 6.30, 0.313, 0.418 and 0.529 for 6.3050, 0.3124, 0.4187 and 0.5299. Against draws."""
    row = tuple(clouds.reference_table(processing, (active,))[active].values())
    assert row == pytest.approx(expected, abs=6e-7)
    rng, count = np.random.default_rng(6), 40_000
    arrival = np.partition(rng.exponential(2.0, (count, 10, 10)), active - 1, axis=2)[..., :active]
    k = rng.integers(1, 6, arrival.shape)
    process = k * rng.exponential(1.0, k.shape) if processing == "product" else rng.gamma(k)
    tau = np.sort((arrival + process).max(axis=2), axis=1)
    for values, mean in ((tau.mean(axis=1), row[0]), (tau[:, -1], row[1]), (tau[:, 2], row[2] * row[1])):
        assert abs(values.mean() - mean) < 4.5 * values.std() / np.sqrt(count)


def test_time_per_aggregation_under_the_real_protocols():
    """Section 15: servers that come late have a head start, so the ratios are not r_{B,N}. 10 servers, |Q| = 3."""
    rng, count = np.random.default_rng(7), 3000
    arrival = np.sort(rng.exponential(2.0, (10, count, 10)), axis=2)[..., :3]
    process = rng.integers(1, 6, arrival.shape) * rng.exponential(1.0, arrival.shape)
    tau = (arrival + process).max(axis=2)
    sync = clouds.sync_schedule(tau, count)[-1].time / count
    for b, plain, rigorous in ((3, 0.14, 0.46), (5, 0.26, 0.51), (7, 0.43, 0.59)):
        assert clouds.async_schedule(tau, b, count)[-1].time / count / sync == pytest.approx(plain, abs=0.011)
        last = max(s.time for s in clouds.rigorous_schedule(tau, b, count) if len(s.members) == b)
        assert last / count / sync == pytest.approx(rigorous, abs=0.011)
