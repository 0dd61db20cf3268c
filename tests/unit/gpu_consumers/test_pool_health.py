"""Goal: a pool that was away is taken for there when it has done work, and not before."""

import pytest
from prometheus_client import REGISTRY

from gpu_consumers.engines.engine import EngineAnswer
from gpu_consumers.flow_control import pool_health
from tests.unit.gpu_consumers.online_bench import OnlineBench, call


@pytest.mark.parametrize(
    ("status", "is_there"), [(200, 1.0), (400, 1.0), (500, 0.0), (502, 0.0), (409, 0.0)]
)
async def test_only_work_that_was_done_proves_that_the_pool_is_there(
    monkeypatch: pytest.MonkeyPatch, status: int, is_there: float
) -> None:
    monkeypatch.setattr(pool_health, "_BACKOFF_S_MIN", 0.0)
    bench = OnlineBench()
    bench.pool.away()
    while bench.pool._retry is not None:
        await bench.settle()
    bench.engine.answer = EngineAnswer(status, b"")
    bench.engine.go.set()
    bench.begin(call(stream=False))
    await bench.end()
    assert bench.log.statuses() == [status]
    assert REGISTRY.get_sample_value("millrace_pool_available") == is_there
