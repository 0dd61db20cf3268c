"""Metrics of the object store, in every role that uses it."""

from prometheus_client import Counter

UNAVAILABLE = Counter(
    "millrace_object_store_unavailable_total",
    "Requests that the object store did not answer, or answered with 'retry later'.",
)
