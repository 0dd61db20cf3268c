"""Counters of roles, as the processes of all hosts tell them."""

from collections.abc import Mapping
from typing import Final, NamedTuple

import httpx

from chaos.errors import DrillError
from chaos.installations.hosts import wait_until
from chaos.installations.installation import Installation
from cli.stack.state.stack_state import read_state

ANSWER_S_MAX: Final = 5.0
READY_S_MAX: Final = 60.0


class Counter(NamedTuple):
    """A number that a role tells, by the name of its sample with all labels."""

    role: str
    sample: str


DUPLICATES: Final = Counter("results-writer", "millrace_results_duplicates_total")
"""Outcomes that came twice."""


def refused(role: str) -> Counter:
    """Return the counter of writes that came to nothing, as another held the lease."""
    return Counter(role, f'millrace_lease_writes_refused_total{{role="{role}"}}')


def read_counters(installation: Installation, counter: Counter) -> dict[str, float]:
    """Return what the role of each host has counted since its start. Raises DrillError."""
    found: dict[str, float] = {}

    def all_told() -> bool:
        for name, host in installation.hosts.items():
            state = read_state(host.data)
            if state is None:
                raise DrillError(f"host {name} has not said where it listens")
            try:
                url = f"http://127.0.0.1:{state.metrics_ports[counter.role]}/metrics"
                found[name] = parse_sample(httpx.get(url, timeout=ANSWER_S_MAX).text, counter)
            except httpx.HTTPError:
                return False  # it starts again
        return True

    wait_until(all_told, READY_S_MAX, f"the counters of every {counter.role}")
    return found


def parse_sample(text: str, counter: Counter) -> float:
    """Return the counter's value in Prometheus' text; 0 before it was counted under its labels."""
    samples = (line.rpartition(" ") for line in text.splitlines())
    return next((float(value) for name, _, value in samples if name == counter.sample), 0.0)


def total_increase(before: Mapping[str, float], now: Mapping[str, float]) -> int:
    """Return the sum of what was added; a counter below its earlier value began again at 0."""
    return round(
        sum(count - before[name] if count >= before[name] else count for name, count in now.items())
    )
