"""Goal: recovery and outages are timed from samples and probes as defined."""

import math

import pytest

from chaos.checkers import outages
from chaos.checkers.outages import Probe, Sample
from chaos.clients.history import Operation
from chaos.drills.postgres_loss import check_readiness


def samples(*rates: float) -> list[Sample]:
    """A counter sampled ten times a second, with one rate in each second."""
    found, count = [Sample(0.0, 0)], 0.0
    for second, rate in enumerate(rates):
        for tenth in range(1, 11):
            count += rate / 10
            found.append(Sample(second + tenth / 10, round(count)))
    return found


@pytest.mark.parametrize(
    ("rates", "since_s", "settled_s", "took_s"),
    [
        ([100, 100, 0, 0, 100, 100, 100], 2.0, 0.0, 2.0),
        ([100] * 6, 2.0, 0.0, 0.0),
        ([100, 100, 0, 50, 80, 80], 2.0, 0.0, math.inf),
        ([100, 100, 100, 0, 0, 100, 100, 100], 2.0, 0.0, 3.0),
        ([100, 100, 0, 0, 150, 0, 50, *[100] * 6], 2.0, 0.0, 1.6),
        ([100, 100, 0, 0, 150, 0, 50, *[100] * 6], 2.0, 3.0, 4.6),
        ([100, 100, 100, 100, 0, 0], 1.0, 3.0, math.inf),
    ],
    ids=["back", "never fell", "stays low", "in flight", "burst", "settled", "late dip"],
)
def test_a_recovered_rate_is_timed_from_the_kill(
    rates: list[float], since_s: float, settled_s: float, took_s: float
) -> None:
    found = outages.seconds_to_recovery(
        samples(*rates), since_s, 90.0, over_s=1.0, settled_s=settled_s
    )
    assert found == pytest.approx(took_s, abs=0.41 if settled_s else 0.11)


def test_a_stalled_rate_is_not_steady() -> None:
    assert outages.steady_rate(samples(100, 80, 120), 3.0, over_s=2.0) == pytest.approx(100, abs=2)
    for still in (samples(100, 0, 0), samples(100, 100, 0), samples(100, 0, 400), samples()):
        assert outages.steady_rate(still, 3.0, over_s=2.0) is None


def test_a_rate_of_too_few_samples_is_zero() -> None:
    assert outages.rate([Sample(1.0, 5)], 0.0, 2.0) == 0.0


def probe(asked_s: float, status: int, took_s: float = 0.1, *, retry_after: bool = True) -> Probe:
    return Probe(asked_s=asked_s, took_s=took_s, status=status, retry_after=retry_after)


def test_the_only_proper_refusal_is_503_with_retry_after() -> None:
    proper = [probe(0, 200), probe(1, 503)]
    assert outages.improper_refusals(proper) == []
    wrong = [probe(2, 500), probe(3, 0), probe(4, 503, retry_after=False)]
    assert outages.improper_refusals([*proper, *wrong]) == wrong
    assert outages.improper_refusals([probe(5, 507)], proper=(503, 507)) == []


def test_the_longest_and_the_first_response_are_found() -> None:
    seen = [probe(0, 200), probe(1, 503, 9.0), probe(11, 503), probe(12, 200, 0.5)]
    assert outages.longest_response_s(seen) == 9.0
    assert outages.longest_response_s([]) == 0.0
    assert outages.seconds_to_response(seen, 0.5, good=False) == pytest.approx(9.5)
    assert outages.seconds_to_response(seen, 10.0, good=True) == pytest.approx(2.5)
    assert outages.seconds_to_response(seen, 13.0, good=True) == float("inf")


def test_probes_are_read_from_a_history() -> None:
    detail = {"asked_s": 1.0, "status": 503, "retry_after": True}
    history = [
        Operation(t=3.0, client="p", op="probe", key="/readyz", phase="fail", detail=detail),
        Operation(t=3.0, client="p", op="watch", key="/readyz", phase="ok"),
    ]
    (found,) = outages.probes(history, "/readyz")
    assert (found.took_s, found.status, found.retry_after) == (2.0, 503, True)


def readiness(*seen: outages.Probe) -> dict[str, bool]:
    """Check an outage that starts at 2 s and is healed at 10 s."""
    found = check_readiness("stopped", seen, 2.0, 10.0, must_flip=True)
    return {measure.what.removeprefix("stopped: "): measure.passed for measure in found}


def test_readiness_turns_bad_and_recovers() -> None:
    found = readiness(probe(1, 200), probe(3, 503), probe(9, 503), probe(11, 200))
    assert list(found.values()) == [True, True, True]


def test_readiness_that_stays_bad_fails_then_and_in_the_next_outage() -> None:
    stays_bad = readiness(probe(1, 200), probe(3, 503), probe(11, 503), probe(15, 503))
    assert stays_bad == {
        "losses before which readiness was bad": True,
        "until readiness says so": True,
        "from heal to readiness": False,
    }
    after = readiness(probe(1, 503), probe(3, 503), probe(11, 200))
    assert not after["losses before which readiness was bad"]
    assert not readiness(probe(3, 503), probe(11, 200))["losses before which readiness was bad"]


def test_readiness_is_timed_from_the_start_of_an_outage() -> None:
    found = readiness(probe(1, 200), probe(6, 200), probe(7.5, 503), probe(11, 200))
    assert not found["until readiness says so"]


def test_an_unobserved_restart_needs_only_good_readiness_after_it() -> None:
    seen = [probe(1, 200), probe(11, 200)]
    found = check_readiness("restart", seen, 2.0, 10.0, must_flip=False)
    assert [measure.passed for measure in found] == [True, True]
