"""Metrics of the role `webhooks`."""

from typing import Final

from prometheus_client import Counter, Gauge, Histogram

TRIES: Final = Counter(
    "millrace_webhook_tries",
    "Tries that ended, by how: delivered, a class of status like 5xx, or a code of ours",
    ["result"],
)
TRY_SECONDS: Final = Histogram(
    "millrace_webhook_try_seconds",
    "Time of a try, from the look-up to the head of the answer",
    buckets=(0.01, 0.05, 0.1, 0.5, 1, 2, 5, 10, 20, 60),
)
FIRST_TRY_AGE: Final = Histogram(
    "millrace_webhook_first_try_age_seconds",
    "Age of a message when its first try begins",
    buckets=(0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 60, 600),
)
RUNNING: Final = Gauge("millrace_webhook_tries_running", "Tries that run in this process")
PUT_OFF: Final = Counter(
    "millrace_webhook_tries_put_off",
    "Tries that did not begin, for want of a thread for a look-up, a file or memory",
)
ENDED: Final = Counter(
    "millrace_webhook_deliveries_ended",
    "Deliveries that need no more tries: delivered or exhausted",
    ["state"],
)
