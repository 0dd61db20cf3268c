"""Durations of the stages of a call, for the `server-timing` header."""

from dataclasses import dataclass

from topics.records.records import ReplyEnd


@dataclass(slots=True)
class Timings:
    """Times of a call on the monotonic clock of this process."""

    arrived_s: float
    sent_s: float = 0.0
    replied_s: float = 0.0  # first piece, or the end; 0: no reply yet

    def gateway_ms(self) -> float:
        """Return the time from the request's head to its record."""
        return (self.sent_s - self.arrived_s) * 1000

    def at_stream_head(self) -> bytes:
        """Return the durations known when a stream starts: the queue ends with the first piece."""
        if not self.replied_s:
            return b"gateway;dur=%.2f" % self.gateway_ms()
        queue_ms = (self.replied_s - self.sent_s) * 1000
        return b"gateway;dur=%.2f, queue;dur=%.2f" % (self.gateway_ms(), max(0.0, queue_ms))

    def at_end(self, end: ReplyEnd, *, now_s: float) -> bytes:
        """Return all durations. The queue is the time that no other stage accounts for."""
        batch_ms, execution_ms = end.waited_s * 1000, end.execution_s * 1000
        log_ms = (self.replied_s - self.sent_s) * 1000 - batch_ms - execution_ms
        return (
            b"gateway;dur=%.2f, queue;dur=%.2f, batch;dur=%.2f, execution;dur=%.2f,"
            b" postprocess;dur=%.2f"
        ) % (
            self.gateway_ms(),
            max(0.0, log_ms),
            batch_ms,
            execution_ms,
            (now_s - self.replied_s) * 1000,
        )
