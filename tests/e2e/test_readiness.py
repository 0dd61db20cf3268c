"""Goal: every role of a running stack reports readiness in its metrics."""

import httpx

from tests.e2e.observed_streams import role_metric
from tests.support.stacks import Stack

NAME = "millrace_role_ready"


def test_every_role_reports_that_it_is_ready(stack: Stack) -> None:
    ready = {role: role_metric(stack, role, NAME) for role in stack.state.metrics_ports}

    assert ready == dict.fromkeys(ready, 1.0)
    assert "gpu-" in " ".join(ready)
    assert "api" in ready
    assert httpx.get(f"{stack.url}/metrics", timeout=30).status_code == 404
