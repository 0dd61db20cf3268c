"""Goal: the load of a process is that since the last reading, within its bounds."""

import asyncio

import pytest

from core.runtime.process_load import LoadMeter, percentile_95


@pytest.mark.parametrize(
    ("samples", "expected"),
    [([], 0.0), ([3.0], 3.0), ([0.0] * 19 + [1.0], 1.0), ([0.0] * 20 + [1.0], 0.0)],
)
def test_the_percentile(samples: list[float], expected: float) -> None:
    assert percentile_95(samples) == expected


def test_each_reading_starts_anew() -> None:
    times, cpu = [0.0], [0.0]
    meter = LoadMeter(lambda: times[0], lambda: cpu[0])
    times[0], cpu[0] = 2.0, 0.5
    meter.add_lag(0.25)
    assert meter.read() == (0.25, 0.25, 2.0)
    times[0], cpu[0] = 3.0, 4.5  # several threads
    meter.add_lag(-0.01)
    assert meter.read() == (1.0, 0.0, 1.0)
    assert meter.read() == (0.0, 0.0, 0.0)


def test_a_blocked_loop_is_late() -> None:
    times = [0.0]
    meter = LoadMeter(lambda: times[0], lambda: 0.0)

    async def measure() -> float:
        task = asyncio.create_task(meter.run())
        await asyncio.sleep(0)
        times[0] = 1.05  # as if a callback had blocked the loop
        found = 0.0
        while not found:
            await asyncio.sleep(0.01)
            found = meter.read().loop_lag_s
        task.cancel()
        return found

    assert asyncio.run(asyncio.wait_for(measure(), 40)) == pytest.approx(1.0)
