"""Goal: a call that comes again runs once more only where nobody had its end, and is permitted."""

from uuid import UUID

import pytest

from core.outcomes import Outcome
from gpu_consumers.engines.engine import EngineAnswer
from gpu_consumers.quarantine import rerun_permission
from tests.unit.gpu_consumers.online_bench import OnlineBench, call


async def test_a_call_that_may_have_run_waits_for_its_callers_word() -> None:
    bench = OnlineBench()
    bench.begin(call(), may_have_run=True)
    await bench.settle()
    assert (bench.engine.served, bench.log.questions) == (0, [UUID(int=1)])
    bench.news(permitted=[UUID(int=1)])
    bench.engine.go.set()
    await bench.end()
    assert (bench.log.statuses(), bench.finished) == ([200], 1)


async def test_a_call_that_nobody_permits_is_not_run_and_its_caller_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rerun_permission, "ANSWER_S_MAX", 0.0)
    bench = OnlineBench()
    bench.begin(call(), may_have_run=True)
    await bench.end()
    assert bench.log.questions == [UUID(int=1)] * rerun_permission.ASKS_MAX
    assert (bench.engine.served, bench.log.statuses(), bench.log.bills) == (0, [502], [])
    assert bench.finished == 1


async def test_an_aborted_call_waits_for_no_permission() -> None:
    bench = OnlineBench()
    bench.begin(call(), may_have_run=True)
    await bench.settle()
    bench.news(aborted=[UUID(int=1)])
    await bench.settle()
    assert (bench.finished, bench.log.statuses()) == (1, [])


async def test_a_durable_call_that_may_have_run_runs_again() -> None:
    bench = OnlineBench()
    bench.engine.go.set()
    bench.engine.answer = EngineAnswer(200, b'{"a":1}', 3, 2)
    bench.begin(call(stream=False, durable=True), may_have_run=True)
    await bench.end()
    assert (bench.log.questions, bench.log.statuses()) == ([], [200])
    (outcome,) = bench.log.outcomes
    assert (outcome.outcome, outcome.body) == (
        Outcome.SUCCEEDED,
        b'{"a":1,"system_fingerprint":"m@1"}',
    )


async def test_a_second_delivery_runs_nothing_and_ends_with_the_first() -> None:
    bench = OnlineBench()
    bench.begin(call())
    bench.begin(call(), may_have_run=True)
    await bench.settle()
    assert bench.finished == 0
    bench.engine.go.set()
    await bench.end()
    bench.begin(call())
    await bench.end()
    assert (bench.finished, bench.engine.served, bench.log.questions) == (3, 1, [])
    assert bench.capacity.in_flight == 0


@pytest.mark.parametrize("durable", [False, True])
async def test_a_call_that_comes_back_before_its_return_is_acknowledged_runs(durable: bool) -> None:
    bench = OnlineBench()
    bench.engine.away, bench.log.keeps_waiting = True, "chunk"
    bench.begin(call(durable=durable))
    await bench.settle()
    (chunk,) = bench.log.put_back
    bench.engine.away = False
    bench.engine.go.set()
    bench.begin(chunk)
    bench.begin(chunk)
    await bench.settle()
    assert (bench.engine.served, bench.finished) == (0, 0)
    bench.log.acknowledge()
    await bench.end()
    assert (bench.engine.served, bench.log.statuses(), bench.finished) == (1, [200], 3)
    assert bench.capacity.in_flight == 0
