"""Prometheus metrics of online calls. Tenants and requests are never labels."""

from prometheus_client import Counter, Gauge, Histogram

OPEN = Gauge("millrace_online_calls_open", "Online calls that wait for their reply")
ENDED = Counter("millrace_online_calls_total", "Online calls that were sent", ["endpoint", "end"])
REFUSED = Counter(
    "millrace_online_refused_total", "Online calls refused before they were sent", ["reason"]
)
PREDICTED_WAIT_SECONDS = Gauge(
    "millrace_online_predicted_wait_seconds",
    "Seconds that one more call would wait for its execution",
    ["pool"],
)
RETRY_PROMISES = Gauge(
    "millrace_online_retry_promises", "Refused calls whose place is kept for their retry"
)
WAKING_CALLS = Counter(
    "millrace_online_waking_calls_total",
    "Online calls for pools without replicas that the autoscaler starts",
    ["result"],
)
SCALING_READER = Gauge(
    "millrace_online_scaling_reader",
    "1: decisions of the autoscaler are read; 0: the reader failed, and is started again",
)
DEGRADED = Counter(
    "millrace_online_degraded_total", "Online calls degraded because of load", ["by"]
)
FIRST_PIECE_SECONDS = Histogram(
    "millrace_online_first_piece_seconds",
    "Seconds from a request's head to the first piece of its stream",
    buckets=(0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100),
)
PIECES = Counter("millrace_online_pieces_total", "Pieces of streams received")
REPLIES_DROPPED = Counter(
    "millrace_online_replies_dropped_total",
    "Replies that belonged to no open call or to a second execution",
    ["reason"],
)
QUESTIONS = Counter(
    "millrace_online_questions_total",
    "Requests for permission to execute a redelivered call",
    ["answer"],
)
RECORDINGS_DROPPED = Counter(
    "millrace_online_recordings_dropped_total",
    "Recordings of streams with an idempotency key that were discarded",
    ["reason"],
)
CACHE = Counter("millrace_online_cache_total", "Cache look-ups of calls", ["result"])
CACHE_BYTES = Gauge("millrace_online_cache_bytes", "Bytes of cached responses")
