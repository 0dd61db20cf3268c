"""Outcomes that came twice, as the writers of all hosts count them."""

from collections.abc import Mapping
from typing import Final

import httpx

from chaos.failures import DrillError
from chaos.hosts import wait_until
from chaos.installation import Installation
from cli.stack.state import read_state

ANSWER_S_MAX: Final = 5.0
READY_S_MAX: Final = 60.0
_COUNTER: Final = "millrace_results_duplicates_total "


def doubles_seen(running: Installation) -> dict[str, float]:
    """Return what each host's writer has counted since its start. Raises DrillError."""
    found: dict[str, float] = {}

    def all_told() -> bool:
        for name, host in running.hosts.items():
            state = read_state(host.data)
            if state is None:
                raise DrillError(f"host {name} has not said where it listens")
            try:
                url = f"http://127.0.0.1:{state.metrics_ports['results-writer']}/metrics"
                lines = httpx.get(url, timeout=ANSWER_S_MAX).text.splitlines()
            except httpx.HTTPError:
                return False  # it starts again
            found[name] = next((float(x.split()[1]) for x in lines if x.startswith(_COUNTER)), 0.0)
        return True

    wait_until(all_told, READY_S_MAX, "the writers' counters")
    return found


def doubles_since(before: Mapping[str, float], now: Mapping[str, float]) -> int:
    """Return the sum of what was added; a counter below its earlier value began again at 0."""
    return round(
        sum(count - before[name] if count >= before[name] else count for name, count in now.items())
    )
