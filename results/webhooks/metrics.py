"""Metrics of the role `webhooks`."""

from typing import Final

from prometheus_client import Counter, Gauge, Histogram

ATTEMPTS: Final = Counter(
    "millrace_webhook_tries",
    "Finished attempts by result: delivered, a class of status like 5xx, or an error code",
    ["result"],
)
ATTEMPT_SECONDS: Final = Histogram(
    "millrace_webhook_try_seconds",
    "Time of an attempt, from the look-up to the head of the response",
    buckets=(0.01, 0.05, 0.1, 0.5, 1, 2, 5, 10, 20, 60),
)
FIRST_ATTEMPT_AGE: Final = Histogram(
    "millrace_webhook_first_try_age_seconds",
    "Age of a message when its first attempt begins",
    buckets=(0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 60, 600),
)
RUNNING: Final = Gauge("millrace_webhook_tries_running", "Running attempts of this process")
POSTPONED: Final = Counter(
    "millrace_webhook_tries_put_off",
    "Attempts postponed for lack of a thread for a look-up, an open file or memory",
)
ENDED: Final = Counter(
    "millrace_webhook_deliveries_ended",
    "Deliveries without further attempts: delivered or exhausted",
    ["state"],
)
