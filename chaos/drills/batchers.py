"""P2 and P4: batchers are killed, added and removed under load.

The two hosts have a bulk batcher each; a third one runs beside them. 1. Each of the three is killed
once, one at a time; the next kill follows when all three are members of the group again. 2. A
fourth is added. 3. The third is removed by SIGTERM. A job is created before each of these, so that
items wait throughout, and all jobs are reconciled: nothing is lost or doubled.
"""

import random
import time
from contextlib import ExitStack
from typing import Final

import psutil

from batcher.faust_app.request_stream import group_of
from chaos.clients.client import input_lines
from chaos.drills.context import MODEL, DrillContext
from chaos.errors import DrillError
from chaos.faults.healing import require_target
from chaos.faults.processes import kill_role
from chaos.installations.hosts import wait_until
from chaos.installations.installation import Installation
from chaos.installations.settings import SESSION_S
from chaos.measures import Measure
from chaos.observations import database
from chaos.observations.role_counters import DUPLICATES, count_increase
from chaos.verification.reconciliation import EndedJob, reconcile_jobs
from cli.stack.processes.child import Child, ChildProcess, spawn
from cli.stack.processes.role_children import MEMBERS_FOLDER
from core.runtime.role_lifecycle import EXIT_OK
from topics.clients.admin import TopicAdmin
from topics.errors import KafkaUnavailableError

ITEMS: Final = 3_000
"""Of each job: several seconds of work, so that a batcher is killed while items wait."""

PROGRESS: Final = 300
"""Items that succeed between a job's creation and the next kill."""

JOINED_S_MAX: Final = 30.0
STOP_S_MAX: Final = 15.0
JOB_S_MAX: Final = 180.0


def run(context: DrillContext) -> list[Measure]:
    """Kill each of three batchers, add one, remove one, and reconcile the jobs."""
    installation = context.installation
    chance = random.Random(context.seed)
    until_s = time.monotonic() + JOB_S_MAX
    client = context.client("batchers")
    file_id = client.upload(f"batchers-{context.seed}", input_lines(ITEMS, MODEL), until_s)
    jobs: list[str] = []

    def load() -> None:
        """Create a job, and wait until items of it or of earlier ones succeed."""
        key = f"batchers-{context.seed}-{len(jobs)}"
        jobs.append(client.create(key, file_id, until_s)["id"])
        database.await_progress(installation.engine, PROGRESS)

    duplicates = count_increase(installation, DUPLICATES)
    with ExitStack() as closing:
        extra = _add(installation, "batcher-3", closing)
        _await_members(installation, 3)
        names = [*(f"{host}/batcher" for host in installation.hosts), "batcher-3"]
        for name in chance.sample(names, len(names)):
            load()
            if name == "batcher-3":
                extra.kill_and_reap()
                extra = _add(installation, name, closing)
            else:
                require_target(kill_role(installation, name), name)
            time.sleep(SESSION_S)  # the dead member counts until then
            _await_members(installation, 3)
        load()
        _add(installation, "batcher-4", closing)
        _await_members(installation, 4)
        load()
        code = _remove(extra)
        _await_members(installation, 3)
        load()
        ended = database.await_jobs(installation.engine, client, jobs, until_s)
    _await_members(installation, len(installation.hosts))  # later drills count them
    ended_jobs = [EndedJob(job, ITEMS) for job in ended.values()]
    return [
        *reconcile_jobs(installation.engine, client, ended_jobs),
        Measure("P2", "exit code of a batcher that was removed", code),
        Measure(
            "P2", "outcomes that came twice, and were seen once", duplicates(), relation="report"
        ),
    ]


def _add(installation: Installation, name: str, closing: ExitStack) -> ChildProcess:
    """Start another bulk batcher of the first host."""
    host = next(iter(installation.hosts.values()))
    process = psutil.Process(host.pid("batcher"))
    # With the folder of the host's batcher it would remove that one's membership.
    env = {name: value for name, value in process.environ().items() if name != MEMBERS_FOLDER}
    env["MILLRACE_BATCHER_METRICS_PORT"] = "0"
    child = Child(name=name, argv=tuple(process.cmdline()), env=env, inherits=(), cwd=process.cwd())
    added = spawn(child, installation.spec.data / "logs")
    closing.callback(added.kill_and_reap)
    return added


def _remove(batcher: ChildProcess) -> int:
    """Stop a batcher as a scale-in does; return its exit code. Raises DrillError."""
    if batcher.has_ended():
        raise DrillError("an added batcher ended by itself")
    batcher.stop(STOP_S_MAX)
    code = batcher.kill_and_reap()
    return code if code == EXIT_OK else abs(code)


def _await_members(installation: Installation, count: int) -> None:
    """Wait until the group of bulk batchers has so many members."""
    admin = TopicAdmin(installation.kafka)

    def has_members() -> bool:
        try:
            return admin.member_count(group_of("bulk")) == count
        except KafkaUnavailableError:
            return False

    wait_until(has_members, JOINED_S_MAX, f"{count} batchers")
