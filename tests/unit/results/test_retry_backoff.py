"""Goal: a failing job is retried ever less often, and others are not affected."""

from uuid import UUID

from results.finaliser.finaliser import BACKOFF_S_MAX, RetryBackoff

ONE, OTHER = UUID(int=1), UUID(int=2)


def test_backoff_doubles_from_the_lease_up_to_a_bound() -> None:
    pauses = RetryBackoff()
    assert [pauses.next_s(ONE, 30) for _ in range(7)] == [30, 60, 120, 240, 480, 900, 900]
    assert BACKOFF_S_MAX == 900
    assert [pauses.next_s(OTHER, 3600) for _ in range(3)] == [3600] * 3
