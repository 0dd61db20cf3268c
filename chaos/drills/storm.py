"""P1, P2, P4, P5 and P6: clients create jobs while everything else goes wrong at random.

1. Clients and watchers begin. 2. The plan of the seed runs. 3. Everything is healed. 4. Whatever
was acknowledged must end. 5. History, rows and files are judged.
"""

import random
import threading
import time
from collections.abc import Sequence
from typing import Any, Final

from chaos import evidence
from chaos.clients import TERMINAL, Client, Watchers, input_lines
from chaos.drills.books import Ended, judge_books
from chaos.drills.setting import MODEL, Setting
from chaos.failures import DrillError
from chaos.judges.acceptance import acknowledged, answers_that_disagree, broken_promises
from chaos.measures import Measure
from chaos.nemeses.conductor import Conductor, kinds
from chaos.planning import plan
from chaos.settings_of_drills import FINALISER_LEASE_S

HEALED_S_MAX: Final = 600.0
CANCELLED_SHARE: Final = 0.15
APPLIED_SHARE: Final = 0.8
"""Of the faults of a plan; a few meet a process that another has just killed."""


def run(setting: Setting) -> list[Measure]:
    """Run one storm."""
    duration_s = setting.size(120, 60)
    running = setting.running
    faults = plan(
        setting.seed,
        kinds(tuple(running.hosts), FINALISER_LEASE_S),
        duration_s=duration_s,
        gap_s=(1, 5) if setting.long else (1, 4),
    )
    jobs = Jobs(setting, duration_s)
    watchers = Watchers([setting.client(f"watcher-{name}", host=name) for name in running.hosts])
    conductor = Conductor(running, faults, setting.recorder)
    watchers.start()
    conductor.start()
    jobs.run(watchers)
    conductor.join()
    setting.note(f"healed; {len(faults)} faults, {len(jobs.sizes)} jobs")
    healed_s = conductor.healed_s  # clients may have insisted for long since then
    accepted = set(acknowledged(setting.recorder.so_far()).values()) | jobs.sizes.keys()
    ended = setting.client("end").await_ends(accepted, healed_s + HEALED_S_MAX)
    took_s = time.monotonic() - healed_s if ended.keys() >= accepted else float("inf")
    watchers.stop()
    for unhappy in evidence.stuck(running.engine):
        setting.note(f"stuck: {unhappy}")
    return [
        *_judge_acceptance(setting, jobs, took_s),
        *judge_books(
            running.engine,
            setting.client("reader"),
            [Ended(job, jobs.sizes[key]) for key, job in ended.items() if key in jobs.sizes],
        ),
        *judge_faults(len(faults), conductor.failures, conductor.unhealed),
    ]


def judge_faults(planned: int, missed: Sequence[str], unhealed: Sequence[str]) -> list[Measure]:
    """Say how much of a plan came true: a storm that hit nobody proves nothing."""
    return [
        Measure(
            promise="P1",
            what="share of the faults that hit somebody",
            value=1 - len(missed) / max(planned, 1),
            limit=APPLIED_SHARE,
            relation=">=",
            size=planned,
            evidence="; ".join(missed),
        ),
        Measure(
            promise="P1",
            what="faults that could not be healed",
            value=len(unhealed),
            size=planned,
            evidence="; ".join(unhealed),
        ),
    ]


class Jobs:
    """Clients that create jobs through a storm."""

    def __init__(self, setting: Setting, duration_s: float) -> None:
        """Nothing is created yet."""
        self._setting, self._duration_s = setting, duration_s
        self.sizes: dict[str, int] = {}  # job to its items
        self.failures: list[str] = []

    def run(self, watchers: Watchers) -> None:
        """Create jobs for as long as the storm lasts; return when every client knows its jobs."""
        threads = [
            threading.Thread(target=self._create, args=(number, watchers), daemon=True)
            for number in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _create(self, number: int, watchers: Watchers) -> None:
        setting = self._setting
        chance = random.Random(f"{setting.seed}-{number}")
        client = setting.client(f"client-{number}")
        began_s = time.monotonic()
        until_s = began_s + self._duration_s + HEALED_S_MAX
        for turn in range(setting.size(60, 20)):
            wait_s = chance.uniform(0.5, 4.0)
            size = chance.choice((1, 20, 100, 300, 800))
            if time.monotonic() + wait_s > began_s + self._duration_s:
                return
            time.sleep(wait_s)
            key = f"{setting.seed}-{number}-{turn}"
            try:
                job = self._one(client, key, size, until_s)
                watchers.add(job["id"])
                if chance.random() < CANCELLED_SHARE:
                    time.sleep(chance.uniform(0.1, 2.0))
                    client.cancel(job["id"], until_s)
            except DrillError as failure:
                self.failures.append(str(failure))

    def _one(self, client: Client, key: str, size: int, until_s: float) -> dict[str, Any]:
        file_id = client.upload(f"file-{key}", input_lines(size, MODEL), until_s)
        job = client.create(f"job-{key}", file_id, until_s)
        self.sizes[job["id"]] = size
        return job


def _judge_acceptance(setting: Setting, jobs: Jobs, took_s: float) -> list[Measure]:
    history = list(setting.recorder.so_far())
    accepted = acknowledged(history)
    broken = broken_promises(accepted.values(), evidence.states(setting.running.engine), TERMINAL)
    files = set(acknowledged(history, "upload").values())
    lost = setting.client("files").missing_files(files)
    disagree = answers_that_disagree(history) | answers_that_disagree(history, "upload")
    errors = [
        step
        for step in history
        if step.op in {"create", "upload"} and step.detail.get("status") == 500
    ]
    return [
        Measure(
            promise="P1",
            what="acknowledged jobs missing or not terminal 600 s after heal",
            value=len(broken),
            size=len(accepted),
            evidence="; ".join(f"{job}: {state}" for job, state in list(broken.items())[:5]),
        ),
        Measure(
            promise="P1",
            what="acknowledged files that are missing",
            value=len(lost),
            size=len(files),
            evidence=" ".join(lost[:5]),
        ),
        Measure(
            promise="P1",
            what="from heal until all were terminal",
            unit="s",
            value=round(took_s, 1),
            limit=HEALED_S_MAX,
            size=len(accepted),
        ),
        Measure(
            promise="P1",
            what="creations that never succeeded",
            value=len(jobs.failures),
            size=len(accepted) + len(jobs.failures),
            evidence="; ".join(jobs.failures[:5]),
        ),
        Measure(
            promise="P5",
            what="keys answered with different ids",
            value=len(disagree),
            size=len(accepted),
            evidence=str(list(disagree.items())[:3]) if disagree else "",
        ),
        Measure(
            promise="P5",
            what="answers 500 to creations and uploads",
            value=len(errors),
            size=len(accepted),
        ),
    ]
