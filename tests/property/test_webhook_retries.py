"""Goal: with any jitter and any failures, attempts continue for 72 hours and end."""

from hypothesis import given
from hypothesis import strategies as st

from results.webhooks.delivery.retry_schedule import (
    DELAYS_S,
    RETRY_AFTER_S_MAX,
    DeliveryFailure,
    next_delay_s,
)

PROMISED_S = 72 * 3600.0
JITTER_MAX = 1.1

fractions = st.floats(0, 1, exclude_max=True)
answers = st.tuples(
    st.sampled_from([None, 301, 400, 404, 429, 500, 502, 503, 504]),
    st.none() | st.floats(0, RETRY_AFTER_S_MAX),
)


def delays_s(tries: list[tuple[tuple[int | None, float | None], float]]) -> list[float]:
    """Return the wait after each failure until the last attempt."""
    waits_s = []
    for count, ((status, retry_after_s), fraction) in enumerate(tries, start=1):
        wait_s = next_delay_s(count, DeliveryFailure(status, retry_after_s), fraction)
        if wait_s is None:
            break
        waits_s.append(wait_s)
    return waits_s


@given(st.lists(st.tuples(answers, fractions), min_size=20, max_size=20))
def test_last_attempt_is_after_72_hours_and_none_is_early(
    tries: list[tuple[tuple[int | None, float | None], float]],
) -> None:
    waits_s = delays_s(tries)

    assert len(waits_s) == len(DELAYS_S) - 1
    assert sum(waits_s) >= PROMISED_S
    published = DELAYS_S[1:]
    for wait_s, least_s, ((_, named_s), _) in zip(waits_s, published, tries, strict=False):
        assert max(least_s, named_s or 0.0) <= wait_s <= max(least_s * JITTER_MAX, named_s or 0.0)
