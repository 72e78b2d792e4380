"""The protocols' own rates: seconds between aggregations over the Sync-cloud's, beside theory. -s prints the table."""

from typing import Any

import pytest

from fedlit import Clock, Cloud, Exponential, FedBCD, Latency
from fedlit.engines.choose import Request
from fedlit.rounds.assembly import simulate_clock
from fedlit.rounds.gathering import RoundOptions
from fedlit.server.sampling import QuotaSampler, Sampler, find_sampler
from tests.clock.test_theory import REFERENCE
from tests.problems import tiny_data, tiny_net

SERVERS, CLIENTS, ACTIVE = 10, 10, 3
CLOCK = Clock(Latency(arrival=Exponential(2.0), compute=Exponential(1.0)))
KNOWN = {"async": {3: 0.14, 5: 0.26, 7: 0.43}, "rigorous": {3: 0.46, 5: 0.51, 7: 0.59}}
"""Protocol -> B -> seconds per aggregation over the Sync-cloud's, by an independent simulation, to two digits."""
_, SYNC_SECONDS, *RATIOS = REFERENCE["product", ACTIVE]
THEORY = dict(zip((3, 5, 7), RATIOS, strict=True))
"""B -> r_{B,10} of fresh draws: what the rates would be if all servers began every round together."""
AGGREGATIONS = 500


def seconds_per_aggregation(sampler: Sampler, cloud: Cloud | None, rounds: int) -> float:
    """Of a real federation on the clock, without training; servers that step alone (rigorous) are no aggregation."""
    data = tiny_data((8,) * SERVERS * CLIENTS)
    data.setup()
    options: dict[str, Any] = {"eval_every": 1, "divergence_factor": 2.0, "store_local_models": False, "seed": 0}
    rules = RoundOptions(ACTIVE, sampler, request=Request(), clock=CLOCK, cloud=cloud, **options)
    events = list(simulate_clock(FedBCD(tiny_net(), batch_size=4), data, rules, rounds))
    together = [event for event in events if cloud is None or len(event.servers) == cloud.servers_per_step]
    return together[-1].time_s / len(together)


def test_a_sync_cloud_waits_for_the_slowest_server() -> None:
    measured = seconds_per_aggregation(QuotaSampler(groups=SERVERS), None, 2 * AGGREGATIONS)
    print(f"\nSync-cloud: {measured:.2f} s, exact {SYNC_SECONDS}", end="")
    assert measured == pytest.approx(SYNC_SECONDS, rel=0.03)


@pytest.mark.parametrize(
    ("protocol", "first"),
    [
        ("async", 3),
        *(pytest.param("async", first, marks=pytest.mark.slow) for first in (5, 7)),
        *(pytest.param("rigorous", first, marks=pytest.mark.slow) for first in (3, 5)),
        ("rigorous", 7),  # with the fewest events for as many aggregations
    ],
)
def test_a_protocols_own_rate(protocol: Any, first: int) -> None:
    cloud = Cloud(servers=SERVERS, first=first, protocol=protocol)
    events = AGGREGATIONS if protocol == "async" else AGGREGATIONS * (1 + SERVERS - first)
    rate = seconds_per_aggregation(find_sampler("earliest"), cloud, events) / SYNC_SECONDS
    print(f"\n{protocol:8s}  B {first}  rate {rate:.3f}  known {KNOWN[protocol][first]}  r {THEORY[first]}", end="")
    assert rate == pytest.approx(KNOWN[protocol][first], abs=0.015)
