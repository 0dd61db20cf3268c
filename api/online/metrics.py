"""Prometheus metrics of online calls. Tenants and requests are never labels."""

from prometheus_client import Counter, Gauge, Histogram

OPEN = Gauge("millrace_online_calls_open", "Online calls that wait for their answer")
ENDED = Counter("millrace_online_calls_total", "Online calls that were sent", ["endpoint", "end"])
REFUSED = Counter(
    "millrace_online_refused_total", "Online calls refused before they were sent", ["reason"]
)
FIRST_PIECE_SECONDS = Histogram(
    "millrace_online_first_piece_seconds",
    "From a stream's head to its first piece",
    buckets=(0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100),
)
PIECES = Counter("millrace_online_pieces_total", "Pieces of streams that arrived")
REPLIES_DROPPED = Counter(
    "millrace_online_replies_dropped_total", "Replies that no call waited for", ["reason"]
)
QUESTIONS = Counter(
    "millrace_online_questions_total", "Questions about redelivered calls", ["answer"]
)
RECORDINGS_DROPPED = Counter(
    "millrace_online_recordings_dropped_total",
    "Streams with a key that are not given again, by why not",
    ["reason"],
)
CACHE = Counter(
    "millrace_online_cache_total", "Calls of tenants that cache, by what was found", ["result"]
)
CACHE_BYTES = Gauge("millrace_online_cache_bytes", "Bytes of answers kept to be given again")
