"""Goal: a body that trickles is cut, one that only pauses or waits for us is not."""

from api.http.request_bodies import MinReadRate


def test_a_trickle_is_noticed_at_the_end_of_its_span() -> None:
    rate = MinReadRate(window_s=10, bytes_per_s_min=100)

    assert all(rate.add(1, 1.0) for _ in range(9))
    assert not rate.add(1, 1.0)


def test_a_pause_within_the_span_is_fine() -> None:
    rate = MinReadRate(window_s=10, bytes_per_s_min=100)

    assert rate.add(1000, 0.1)
    assert rate.add(1, 9.9)
    assert rate.timeout_s() == 10


def test_patience_shrinks_with_what_was_waited() -> None:
    rate = MinReadRate(window_s=10, bytes_per_s_min=100)
    rate.add(1, 4.0)

    assert rate.timeout_s() == 6


def test_time_that_we_took_does_not_count() -> None:
    rate = MinReadRate(window_s=10, bytes_per_s_min=100)

    assert all(rate.add(1, 0.0) for _ in range(10_000))
