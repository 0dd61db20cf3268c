"""A12 with vLLM: seconds from a kill -9 of its replica until the work goes on. Reported only.

Most of it is vLLM's own start; `recovery` judges what is ours.
"""

import time
from typing import Final

from chaos import evidence
from chaos.clients import input_lines
from chaos.drills.books import Ended, judge_books
from chaos.drills.recovery import LEAD_S, PROGRESS_S_MAX, SHARE, Sampler, note_samples
from chaos.drills.setting import Setting
from chaos.failures import DrillError
from chaos.hosts import wait_until
from chaos.judges.recovery import rate_before, seconds_to_recover
from chaos.measures import Measure
from chaos.nemeses import processes

MODEL: Final = "tiny-llama"
ITEMS: Final = 60_000
"""More than are done while it is watched; the rest is cancelled."""
OVER_S: Final = 3.0
WATCHED_S: Final = 180.0


def run(setting: Setting) -> list[Measure]:
    """Kill the only replica in the middle of a job, and sample how many items have ended."""
    running = setting.running
    client = setting.client("engine-recovery")
    until_s = time.monotonic() + 600
    key = f"engine-recovery-{setting.seed}"
    job = client.create(
        key, client.upload(f"file-{key}", input_lines(ITEMS, MODEL), until_s), until_s
    )
    wait_until(lambda: evidence.settled(running.engine) > 500, PROGRESS_S_MAX, "progress")
    sampler = Sampler(running)
    time.sleep(2 * LEAD_S)
    killed_s = time.monotonic()
    (host,) = running.hosts
    processes.kill(running, f"{host}/gpu-consumer")
    rate = rate_before(sampler.samples, killed_s, over_s=LEAD_S)
    samples = sampler.until_recovered(killed_s, over_s=OVER_S, watched_s=WATCHED_S)
    took_s = seconds_to_recover(samples, killed_s, share=SHARE, over_s=OVER_S)
    note_samples(setting, "vllm", samples, killed_s)
    client.cancel(job["id"], time.monotonic() + 60)
    ended = client.await_ends([job["id"]], time.monotonic() + 180)
    if not ended:
        raise DrillError(f"not terminal: {evidence.stuck(running.engine)}")
    recovered = Measure(
        promise="A12",
        what="from kill -9 to 90 % of the rate: gpu-consumer with vLLM, its start included",
        unit="s",
        value=float("inf") if took_s is None else round(took_s, 2),
        relation="report",
        size=round(rate),
        evidence=f"{rate:.0f} items/s before",
    )
    return [recovered, *judge_books(running.engine, client, [Ended(ended[job["id"]], ITEMS)])]
