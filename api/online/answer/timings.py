"""Where the time of a call went, for the `server-timing` header."""

from dataclasses import dataclass

from topics.records.records import ReplyEnd


@dataclass(slots=True)
class Timings:
    """Moments of a call on this process's monotonic clock."""

    arrived_s: float
    sent_s: float = 0.0
    heard_s: float = 0.0  # of the first piece, or of the end; 0: nothing yet

    def gateway_ms(self) -> float:
        """Return the time from the head to the record."""
        return (self.sent_s - self.arrived_s) * 1000

    def at_stream_head(self) -> bytes:
        """Return what is known when a stream begins: the queue ends with its first piece."""
        if not self.heard_s:
            return b"gateway;dur=%.2f" % self.gateway_ms()
        queue_ms = (self.heard_s - self.sent_s) * 1000
        return b"gateway;dur=%.2f, queue;dur=%.2f" % (self.gateway_ms(), max(0.0, queue_ms))

    def at_end(self, end: ReplyEnd, *, now_s: float) -> bytes:
        """Return the whole breakdown. The queue is what no part of the path accounts for."""
        batch_ms, execution_ms = end.waited_s * 1000, end.execution_s * 1000
        log_ms = (self.heard_s - self.sent_s) * 1000 - batch_ms - execution_ms
        return (
            b"gateway;dur=%.2f, queue;dur=%.2f, batch;dur=%.2f, execution;dur=%.2f,"
            b" postprocess;dur=%.2f"
        ) % (
            self.gateway_ms(),
            max(0.0, log_ms),
            batch_ms,
            execution_ms,
            (now_s - self.heard_s) * 1000,
        )
