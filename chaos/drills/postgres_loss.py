"""P11: without Postgres every request ends within 10 s with 503, and service resumes soon after.

Readiness must change as well. It has to be good before each outage: a readiness that stays bad
would be correct in every later outage.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from chaos.checkers import outages
from chaos.checkers.outages import Probe
from chaos.clients.client import input_lines
from chaos.clients.observers import probing
from chaos.drills.context import MODEL, DrillContext
from chaos.errors import NotServedError
from chaos.faults import connections, processes
from chaos.faults.healing import Heal, require_target
from chaos.installations.hosts import wait_until
from chaos.installations.installation import Installation
from chaos.measures import Measure, duration, violations
from chaos.observations import database
from chaos.verification.acknowledged import chat_body, check_accepted_calls, check_files
from chaos.verification.reconciliation import EndedJob, reconcile_jobs

ANSWER_S_MAX: Final = 10.0
RETURN_S_MAX: Final = 5.0
FLIP_S_MAX: Final = 5.0
BEFORE_S: Final = 2.0
OBSERVED_S: Final = 6.0
HEAL_S_MAX: Final = 60.0
FIRST_S_MAX: Final = 60.0
JOB_ITEMS: Final = 100
JOB_S_MAX: Final = 60.0
"""For a small job after each outage, which needs every role."""

CALLS_S_MAX: Final = 120.0
"""For calls that were answered 202; a lost record is sent again after a while."""

CONTENT: Final = b"{}\n"
READY: Final = "/readyz"
ALIVE: Final = "/healthz"
LIST: Final = "list batches"
CREATE: Final = "upload a file"
CHAT: Final = "complete a chat"
DURABLE: Final = "complete a chat that outlives its connection"
CALLS: Final = (LIST, CREATE, CHAT, DURABLE)
CHAT_BODY: Final = chat_body("hello", 8)
_JSON: Final = {"content-type": "application/json"}
_ONE_CHAT: Final = {
    "method": "POST",
    "url": "/v1/chat/completions",
    "content": CHAT_BODY,
    "headers": _JSON,
}

REQUESTS: Final[Mapping[str, Mapping[str, Any]]] = {
    READY: {"method": "GET", "url": "/readyz"},
    ALIVE: {"method": "GET", "url": "/healthz"},
    LIST: {"method": "GET", "url": "/v1/batches"},
    CREATE: {
        "method": "POST",
        "url": "/v1/files",
        "files": {"file": ("in.jsonl", CONTENT)},
        "data": {"purpose": "batch"},
    },
    CHAT: _ONE_CHAT,
    DURABLE: _ONE_CHAT | {"headers": {**_JSON, "prefer": "wait=5"}},
}


def run(context: DrillContext) -> Iterator[Measure]:
    """Make Postgres unavailable in each way while probes run."""
    _warm_up(context)
    outage_s = context.size(30, 11)
    for name, (inject, duration_s) in _outages(context.installation, outage_s).items():
        yield from _run_outage(context, name, inject, duration_s)
    yield check_files(context, "P11", CONTENT)
    until_s = time.monotonic() + CALLS_S_MAX
    yield from check_accepted_calls(context, "P11", body=CHAT_BODY, until_s=until_s)


def _outages(
    installation: Installation, outage_s: float
) -> dict[str, tuple[Callable[[], Heal], float]]:
    url = installation.addresses.database_url
    set_mode = partial(connections.set_proxy_mode, installation)
    return {
        "immediate restart": (partial(processes.restart_service, installation, "postgres"), 0.0),
        "stopped": (partial(processes.pause_service, installation, "postgres"), outage_s),
        "black hole": (partial(set_mode, "postgres-a:blackhole"), outage_s),
        "refused": (partial(set_mode, "postgres-a:refuse"), outage_s / 2),
        "connections taken": (partial(connections.exhaust_connections, url), outage_s),
    }


def _warm_up(context: DrillContext) -> None:
    """Send each request once: the first one opens connections, which is not measured here."""
    client = context.client("first calls", host="a")

    def is_answered(request: Mapping[str, Any]) -> bool:
        content = {name: request[name] for name in request.keys() - {"method", "url"}}
        answer = client.call(request["method"], request["url"], **content)
        return answer is not None and answer.is_success

    for name, request in REQUESTS.items():
        wait_until(partial(is_answered, request), FIRST_S_MAX, name)


def _run_outage(
    context: DrillContext, name: str, inject: Callable[[], Heal], duration_s: float
) -> list[Measure]:
    host, restarts = context.installation.hosts["a"], not duration_s
    before_pids = _role_pids(context.installation)
    started_before = _postgres_started_s(context.engine)

    def is_back() -> bool:
        started_s = _postgres_started_s(context.engine)
        return started_s is not None and (started_s != started_before or not restarts)

    with probing(context.recorder, host.url, host.key, REQUESTS):
        time.sleep(BEFORE_S)
        began_s = time.time()
        heal = require_target(inject(), name)
        try:
            time.sleep(duration_s)
        finally:
            heal()
        # The start of Postgres is not measured; the recovery of the roles is.
        wait_until(is_back, HEAL_S_MAX, "a new Postgres" if restarts else "Postgres")
        healed_s = time.time()
        time.sleep(OBSERVED_S)
    ended = sorted(role for role, _ in before_pids - _role_pids(context.installation))
    history, from_s = context.recorder.operations(), began_s - BEFORE_S
    seen = {
        path: [probe for probe in outages.probes(history, path) if probe.asked_s > from_s]
        for path in REQUESTS
    }
    return [
        *_check_requests(name, seen, healed_s),
        *check_readiness(name, seen[READY], began_s, healed_s, must_flip=not restarts),
        violations("P11", f"{name}: roles that ended", ended, size=len(before_pids)),
        *_run_small_job(context, name),
    ]


def _postgres_started_s(engine: sa.Engine) -> float | None:
    """Return when Postgres started, without proxies; None while it is unavailable."""
    try:
        query = "SELECT extract(epoch FROM pg_postmaster_start_time())"
        return float(database.select_value(engine, query))
    except SQLAlchemyError:
        return None


def _role_pids(installation: Installation) -> set[tuple[str, int]]:
    """Return every role of every host with its process id."""
    return {
        (f"{host.name}/{role}", pid)
        for host in installation.hosts.values()
        for role, pid in host.roles().items()
    }


def _run_small_job(context: DrillContext, name: str) -> list[Measure]:
    client, engine = context.client(f"after {name}"), context.engine
    key = f"{name.replace(' ', '-')}-{context.seed}"
    began_s = time.monotonic()
    until_s = began_s + JOB_S_MAX
    reconciled, took_s = [], float("inf")
    try:
        job_id = client.submit(key, input_lines(JOB_ITEMS, MODEL), until_s)["id"]
    except NotServedError as failure:
        context.note(str(failure))
    else:
        job = database.await_jobs(engine, client, [job_id], until_s)[job_id]
        if job["status"] == "completed":
            took_s = time.monotonic() - began_s
        reconciled = reconcile_jobs(engine, client, [EndedJob(job, JOB_ITEMS)])
    what = f"{name}: a job that began after it took"
    return [duration("P11", what, took_s, JOB_S_MAX, size=JOB_ITEMS), *reconciled]


def _check_requests(name: str, seen: dict[str, list[Probe]], healed_s: float) -> list[Measure]:
    calls = [probe for path in CALLS for probe in seen[path]]
    improper = list(map(str, outages.improper_refusals(calls)))
    longest_s = outages.longest_response_s(calls)
    back_s = max(outages.seconds_to_response(seen[path], healed_s, good=True) for path in CALLS)
    dead = [str(probe) for probe in seen[ALIVE] if probe.status != 200]
    what = f"{name}: answers that are neither good nor a proper 503"
    return [
        violations("P11", what, improper, size=len(calls)),
        duration("P11", f"{name}: longest answer", longest_s, ANSWER_S_MAX, size=len(calls)),
        duration("P11", f"{name}: from heal to service", back_s, RETURN_S_MAX),
        violations("P11", f"{name}: liveness failures", dead, size=len(seen[ALIVE])),
    ]


def check_readiness(
    name: str, seen: Sequence[Probe], began_s: float, healed_s: float, *, must_flip: bool
) -> list[Measure]:
    """Check one outage that started by `began_s`: readiness is good, then bad, then good.

    A restart may end before the next probe, so `must_flip` is False for it.
    """
    size = len(seen)
    unready = [] if outages.was_available(seen, began_s) else [name]
    flip_s = outages.seconds_to_response(seen, began_s, good=False)
    flip = duration("P11", f"{name}: until readiness says so", flip_s, FLIP_S_MAX, size=size)
    back_s = outages.seconds_to_response(seen, healed_s, good=True)
    return [
        violations("P11", f"{name}: losses before which readiness was bad", unready, size=size),
        *([flip] if must_flip else []),
        duration("P11", f"{name}: from heal to readiness", back_s, RETURN_S_MAX, size=size),
    ]
