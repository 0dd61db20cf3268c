"""Prometheus counters of roles, read from the processes of all hosts."""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import httpx

from chaos.errors import DrillError
from chaos.installations.hosts import wait_until
from chaos.installations.installation import Installation
from cli.stack.data_folder import read_state

ANSWER_S_MAX: Final = 5.0
READY_S_MAX: Final = 60.0


class RoleCounter(NamedTuple):
    """A counter of a role, named by its sample with all labels."""

    role: str
    sample: str


DUPLICATES: Final = RoleCounter("results-writer", "millrace_results_duplicates_total")
"""Outcomes that the writer received twice."""


def refused_writes(role: str) -> RoleCounter:
    """Return the counter of writes refused because another process holds the lease."""
    return RoleCounter(role, f'millrace_lease_writes_refused_total{{role="{role}"}}')


def read_counters(installation: Installation, counter: RoleCounter) -> dict[str, float]:
    """Return a counter's value for each host since the role's start. Raises DrillError."""
    found: dict[str, float] = {}

    def all_read() -> bool:
        for name, host in installation.hosts.items():
            state = read_state(host.data)
            if state is None:
                raise DrillError(f"host {name} has no state file")
            try:
                url = f"http://127.0.0.1:{state.metrics_ports[counter.role]}/metrics"
                found[name] = parse_sample(httpx.get(url, timeout=ANSWER_S_MAX).text, counter)
            except httpx.HTTPError:
                return False  # it is restarting
        return True

    wait_until(all_read, READY_S_MAX, f"the counters of every {counter.role}")
    return found


def parse_sample(text: str, counter: RoleCounter) -> float:
    """Return a counter's value in Prometheus' text format; 0 without the sample."""
    samples = (line.rpartition(" ") for line in text.splitlines())
    return next((float(value) for name, _, value in samples if name == counter.sample), 0.0)


def count_increase(installation: Installation, counter: RoleCounter) -> Callable[[], int]:
    """Return a function that returns a counter's increase over all hosts since now."""
    before = read_counters(installation, counter)
    return lambda: total_increase(before, read_counters(installation, counter))


def total_increase(before: Mapping[str, float], now: Mapping[str, float]) -> int:
    """Return the total increase; a counter below its earlier value has restarted at 0."""
    return round(
        sum(count - before[name] if count >= before[name] else count for name, count in now.items())
    )
