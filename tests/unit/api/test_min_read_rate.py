"""Goal: a slow body is refused; pauses and processing time are tolerated."""

from api.http.request_bodies import MinReadRate


def test_a_slow_body_fails_at_the_end_of_the_window() -> None:
    rate = MinReadRate(window_s=10, bytes_per_s_min=100)

    assert all(rate.add(1, 1.0) for _ in range(9))
    assert not rate.add(1, 1.0)


def test_a_pause_within_the_window_is_allowed() -> None:
    rate = MinReadRate(window_s=10, bytes_per_s_min=100)

    assert rate.add(1000, 0.1)
    assert rate.add(1, 9.9)
    assert rate.timeout_s() == 10


def test_the_timeout_shrinks_with_time_waited() -> None:
    rate = MinReadRate(window_s=10, bytes_per_s_min=100)
    rate.add(1, 4.0)

    assert rate.timeout_s() == 6


def test_processing_time_does_not_count() -> None:
    rate = MinReadRate(window_s=10, bytes_per_s_min=100)

    assert all(rate.add(1, 0.0) for _ in range(10_000))
