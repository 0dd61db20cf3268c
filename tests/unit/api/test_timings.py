"""Goal: `server-timing` has the durations that are known, and no others."""

from api.online.calls import Timings
from topics.records.records import ReplyEnd


def test_a_stream_that_starts_with_a_piece() -> None:
    timings = Timings(10.0, sent_s=10.5, replied_s=12.0)
    assert timings.at_stream_head() == b"gateway;dur=500.00, queue;dur=1500.00"


def test_a_stream_that_starts_before_a_piece() -> None:
    assert Timings(10.0, sent_s=10.5).at_stream_head() == b"gateway;dur=500.00"


def test_durations_are_never_negative() -> None:
    end = ReplyEnd(200, b"", waited_s=1.0, execution_s=2.0)  # by clocks that disagree with ours
    told = Timings(10.0, sent_s=10.5, replied_s=12.0).at_end(end, now_s=12.25)
    assert told == (
        b"gateway;dur=500.00, queue;dur=0.00, batch;dur=1000.00, execution;dur=2000.00,"
        b" postprocess;dur=250.00"
    )
