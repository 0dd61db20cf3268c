"""Goal: a pool counts as available again only after it has executed a request."""

import pytest
from prometheus_client import REGISTRY

from gpu_consumers.engines.engine import EngineAnswer
from gpu_consumers.flow_control import capacity_publisher
from tests.unit.gpu_consumers.fakes import run_loop
from tests.unit.gpu_consumers.online_replica import OnlineReplica, call_chunk


@pytest.mark.parametrize(
    ("status", "is_available"), [(200, 1.0), (400, 1.0), (500, 0.0), (502, 0.0), (409, 0.0)]
)
async def test_only_executed_requests_prove_that_the_pool_is_available(
    monkeypatch: pytest.MonkeyPatch, status: int, is_available: float
) -> None:
    monkeypatch.setattr(capacity_publisher, "_BACKOFF_S_MIN", 0.0)
    replica = OnlineReplica()
    replica.pool.mark_unavailable()
    while replica.pool._probe is not None:
        await run_loop()
    replica.engine.answer = EngineAnswer(status, b"")
    replica.engine.gate.set()
    replica.start_batch(call_chunk(stream=False))
    await replica.wait_ended()
    assert replica.log.statuses == [status]
    assert REGISTRY.get_sample_value("millrace_pool_available") == is_available
