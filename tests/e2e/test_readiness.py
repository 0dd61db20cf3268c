"""Goal: every role of a running stack says by its metrics that it works."""

import httpx

from tests.e2e.online_streams import role_metric
from tests.support.stacks import Stack

NAME = "millrace_role_ready"


def test_every_role_says_that_it_is_ready(stack: Stack) -> None:
    told = {role: role_metric(stack, role, NAME) for role in stack.state.metrics_ports}

    assert told == dict.fromkeys(told, 1.0)
    assert "gpu-" in " ".join(told)
    assert f"\n{NAME} 1.0\n" in httpx.get(f"{stack.url}/metrics", timeout=30).text
