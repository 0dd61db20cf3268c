"""P10: the loss of one of three brokers, and of all."""

import contextlib
import random
import time
from collections.abc import Iterator
from typing import Any, Final

from chaos.checkers import outages
from chaos.checkers.end_states import CANCEL_ASKED
from chaos.checkers.recovery import RATE_MIN, rate_before, seconds_to_goal
from chaos.clients.client import ENDPOINT, Client, input_lines
from chaos.clients.prober import Prober
from chaos.drills.context import MODEL, Setting
from chaos.drills.recovery import SETTLED_S, Sampler, note_samples
from chaos.errors import DrillError
from chaos.faults import services
from chaos.faults.healing import struck
from chaos.installations.hosts import wait_until
from chaos.observations import database
from chaos.reports.measures import Measure
from chaos.verification.acknowledged import judge_jobs
from chaos.verification.reconciliation import Ended, judge_books

ITEMS: Final = 40_000
SHARE: Final = 0.9
OVER_S: Final = 2.0
ONE_S_MAX: Final = 30.0
ALL_S_MAX: Final = 60.0
PROGRESS_S_MAX: Final = 180.0
LEAD_S: Final = 5.0
LOOK_S: Final = 1.0
END_S_MAX: Final = 300.0
CREATE: Final = "create batch"


def run(setting: Setting) -> Iterator[Measure]:
    """Kill each broker in turn under load, and then all of them."""
    running = setting.running
    client = setting.client("brokers")
    until_s = time.monotonic() + END_S_MAX
    tiny = client.upload(f"tiny-{setting.seed}", input_lines(1, MODEL), until_s)
    file_id = client.upload(f"brokers-{setting.seed}", input_lines(ITEMS, MODEL), until_s)
    ask = {"input_file_id": tiny, "endpoint": ENDPOINT, "completion_window": "24h"}
    host = running.hosts["a"]
    prober = Prober(
        setting.recorder,
        host.url,
        host.key,
        {CREATE: {"method": "POST", "url": "/v1/batches", "json": ask}},
    )
    names = [f"kafka-{node + 1}" for node in range(running.shape.broker_count)]
    random.Random(setting.seed).shuffle(names)
    try:
        for name in names:
            job = client.create(f"lose-{setting.seed}-{name}", file_id, until_s)
            yield from _lose(setting, client, job, [name], setting.size(15, 6))
        job = client.create(f"lose-{setting.seed}-all", file_id, until_s)
        yield from _lose(setting, client, job, names, setting.size(60, 15))
    finally:
        prober.stop()
    yield from _judge_acceptance(setting)


def _lose(
    setting: Setting, client: Client, job: dict[str, Any], names: list[str], away_s: float
) -> list[Measure]:
    engine = setting.running.engine
    began = database.settled(engine)
    wait_until(lambda: database.settled(engine) > began + 500, PROGRESS_S_MAX, "progress")
    sampler = Sampler(setting.running)
    is_one = len(names) == 1
    limit_s = ONE_S_MAX if is_one else ALL_S_MAX
    with contextlib.ExitStack() as held_down:
        held_down.callback(sampler.stop)
        time.sleep(LEAD_S)
        lost_s = time.monotonic()
        before = rate_before(sampler.samples, lost_s, over_s=LEAD_S - 1)
        if before < RATE_MIN:
            raise DrillError(f"{before:.1f} items/s before the loss: too few to tell")
        for name in names:
            held_down.callback(struck(services.kill(setting.running, name), name))
        if not is_one:
            time.sleep(away_s)
            _require_down(setting, names)
            for name in names:
                setting.running.let_up(name)
        since_s = lost_s if is_one else time.monotonic()
        took_s = _back(sampler, since_s, SHARE * before, limit_s)
        if is_one:
            _require_down(setting, names)
    note_samples(setting, " ".join(names), sampler.samples, lost_s)
    client.cancel(job["id"], time.monotonic() + 60)
    ended = database.all_ended(engine, client, [job["id"]], time.monotonic() + 120)
    time.sleep(away_s if is_one else 0)  # until copies are in sync again
    what = "one broker lost" if is_one else "all brokers lost and back"
    setting.note(f"{' '.join(names)}: {before:.0f} items/s before, back after {took_s:.1f} s")
    return [
        Measure(
            promise="P10",
            what=f"{what}: until 90 % of the rate",
            unit="s",
            value=round(took_s, 2),
            limit=limit_s,
            size=ITEMS,
            evidence=f"{before:.0f} items/s before",
        ),
        *judge_books(engine, client, [Ended(ended[job["id"]], ITEMS, CANCEL_ASKED)]),
    ]


def _require_down(setting: Setting, names: list[str]) -> None:
    """A rate that did not fall proves something of brokers that were gone. Raises DrillError."""
    if up := [name for name in names if setting.running.service(name) is not None]:
        raise DrillError(f"{' '.join(up)} came back before it was let up")


def _back(sampler: Sampler, since_s: float, goal: float, limit_s: float) -> float:
    """Return seconds until the rate has fallen and is back for a while; infinite if it is not."""
    took_s: float | None = None
    while time.monotonic() < since_s + limit_s + SETTLED_S + OVER_S:
        time.sleep(LOOK_S)
        seen = list(sampler.samples)
        if seen[-1].at_s < since_s + SETTLED_S + OVER_S:
            continue  # a dip comes late
        took_s = seconds_to_goal(seen, since_s, goal, over_s=OVER_S, settled_s=SETTLED_S)
        if took_s is not None:
            break
    return float("inf") if took_s is None else took_s


def _judge_acceptance(setting: Setting) -> list[Measure]:
    seen = outages.probes(setting.recorder.so_far(), CREATE)
    refused = [probe for probe in seen if not 200 <= probe.status < 300]
    until_s = time.monotonic() + END_S_MAX
    return [
        Measure(
            promise="P10",
            what="creations that were refused or not answered",
            value=len(refused),
            size=len(seen),
            evidence=outages.told(refused),
        ),
        *judge_jobs(setting, "P10", items=1, until_s=until_s),
    ]
