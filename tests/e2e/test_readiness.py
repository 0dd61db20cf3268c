"""Goal: every role of a running stack reports readiness in its metrics."""

import httpx

from tests.e2e.observed_streams import role_metric
from tests.support.stacks import READY_S_MAX, Stack
from tests.support.until import until

NAME = "millrace_role_ready"


def test_every_role_reports_that_it_is_ready(stack: Stack) -> None:
    roles = stack.state.metrics_ports.keys()

    def are_ready() -> bool:
        return all(role_metric(stack, role, NAME) == 1.0 for role in roles)

    until(are_ready, "every role to be ready", READY_S_MAX)  # another test may have killed one
    assert "gpu-" in " ".join(roles)
    assert "api" in roles
    assert httpx.get(f"{stack.url}/metrics", timeout=30).status_code == 404
