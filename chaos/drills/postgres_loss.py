"""P11: with Postgres away every request ends within 10 s with 503, and service returns soon.

So does readiness, which has to be good before each loss: one that stays bad would be right about
every loss that follows.
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
from chaos.clients.prober import Prober
from chaos.drills.context import MODEL, DrillContext
from chaos.errors import NotServedError
from chaos.faults import connections, network, services
from chaos.faults.healing import Heal, require_target
from chaos.installations.hosts import wait_until
from chaos.installations.installation import Installation
from chaos.observations import database
from chaos.reports.measures import Measure
from chaos.verification.acknowledged import check_accepted_calls, check_files
from chaos.verification.reconciliation import EndedJob, reconcile_jobs
from chaos.workloads.durable_calls import chat_body

ANSWER_S_MAX: Final = 10.0
RETURN_S_MAX: Final = 5.0
FLIP_S_MAX: Final = 5.0
BEFORE_S: Final = 2.0
AFTER_S: Final = 6.0
HEAL_S_MAX: Final = 60.0
FIRST_S_MAX: Final = 60.0
JOB_ITEMS: Final = 100
JOB_S_MAX: Final = 60.0
"""For a small job after each loss: every role has to be back for it to end."""

CALLS_S_MAX: Final = 120.0
"""For calls that were told to ask again; a record that was lost is sent again after a while."""

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

ASKS: Final[Mapping[str, Mapping[str, Any]]] = {
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
    """Take Postgres away in each way, and probe meanwhile."""
    _call_each_once(context)
    away_s = context.size(30, 11)
    for name, (take_away, lasts_s) in _ways(context.installation, away_s).items():
        yield from _lose(context, name, take_away, lasts_s)
    yield check_files(context, "P11", CONTENT)
    until_s = time.monotonic() + CALLS_S_MAX
    yield from check_accepted_calls(context, "P11", body=CHAT_BODY, until_s=until_s)


def _ways(installation: Installation, away_s: float) -> dict[str, tuple[Callable[[], Heal], float]]:
    return {
        "immediate restart": (lambda: services.restart_immediately(installation, "postgres"), 0.0),
        "stopped": (lambda: services.pause(installation, "postgres"), away_s),
        "black hole": (
            lambda: network.set_proxy_mode(installation, "postgres-a:blackhole"),
            away_s,
        ),
        "refused": (lambda: network.set_proxy_mode(installation, "postgres-a:refuse"), away_s / 2),
        "connections taken": (
            lambda: connections.exhaust_connections(installation.addresses.database_url),
            away_s,
        ),
    }


def _call_each_once(context: DrillContext) -> None:
    """A first call opens connections that later ones keep; that is not what is timed here."""
    client = context.client("first calls", host="a")

    def is_answered(ask: Mapping[str, Any]) -> bool:
        content = {name: ask[name] for name in ask.keys() - {"method", "url"}}
        answer = client.call(ask["method"], ask["url"], **content)
        return answer is not None and answer.is_success

    for name, ask in ASKS.items():
        wait_until(partial(is_answered, ask), FIRST_S_MAX, name)


def _lose(
    context: DrillContext, name: str, take_away: Callable[[], Heal], lasts_s: float
) -> list[Measure]:
    host, restarts = context.installation.hosts["a"], not lasts_s
    lives = _lives(context.installation)
    started_before = _started_s(context.installation.engine)
    prober = Prober(context.recorder, host.url, host.key, ASKS)

    def is_back() -> bool:
        started_s = _started_s(context.installation.engine)
        return started_s is not None and (started_s != started_before or not restarts)

    try:
        time.sleep(BEFORE_S)
        began_s = time.time()
        give_back = require_target(take_away(), name)
        try:
            time.sleep(lasts_s)
        finally:
            give_back()
        # What it takes to start again is its own; what comes after is ours.
        wait_until(is_back, HEAL_S_MAX, "a new Postgres" if restarts else "Postgres")
        healed_s = time.time()
        time.sleep(AFTER_S)
    finally:
        prober.stop()
    ended = sorted(lives - _lives(context.installation))
    seen = {
        path: [
            p
            for p in outages.probes(context.recorder.operations(), path)
            if p.asked_s > began_s - BEFORE_S
        ]
        for path in ASKS
    }
    return [
        *_judge(name, seen, healed_s),
        *check_readiness(name, seen[READY], began_s, healed_s, must_flip=not restarts),
        Measure(
            promise="P11",
            what=f"{name}: roles that ended",
            value=len(ended),
            size=len(lives),
            evidence=", ".join(role for role, _ in ended),
        ),
        *_small_job(context, name),
    ]


def _started_s(engine: sa.Engine) -> float | None:
    """Return when Postgres started, past the proxies; None while it serves nobody."""
    query = sa.text("SELECT extract(epoch FROM pg_postmaster_start_time())")
    try:
        with engine.connect() as connection:
            return float(connection.execute(query).scalar_one())
    except SQLAlchemyError:
        return None


def _lives(installation: Installation) -> set[tuple[str, int]]:
    """Return every role of every host with its process."""
    return {
        (f"{host.name}/{role}", pid)
        for host in installation.hosts.values()
        for role, pid in host.roles().items()
    }


def _small_job(context: DrillContext, name: str) -> list[Measure]:
    client, engine = context.client(f"after {name}"), context.installation.engine
    key = f"{name.replace(' ', '-')}-{context.seed}"
    began_s = time.monotonic()
    until_s = began_s + JOB_S_MAX
    books, took_s = [], float("inf")
    try:
        file_id = client.upload(f"file-{key}", input_lines(JOB_ITEMS, MODEL), until_s)
        job_id = client.create(key, file_id, until_s)["id"]
    except NotServedError as failure:
        context.note(str(failure))
    else:
        job = database.await_jobs(engine, client, [job_id], until_s)[job_id]
        if job["status"] == "completed":
            took_s = round(time.monotonic() - began_s, 2)
        books = reconcile_jobs(engine, client, [EndedJob(job, JOB_ITEMS)])
    return [
        Measure(
            promise="P11",
            what=f"{name}: a job that began after it took",
            unit="s",
            value=took_s,
            limit=JOB_S_MAX,
            size=JOB_ITEMS,
        ),
        *books,
    ]


def _judge(name: str, seen: dict[str, list[Probe]], healed_s: float) -> list[Measure]:
    calls = [probe for path in CALLS for probe in seen[path]]
    improper_refusals = outages.improper_refusals(calls)
    back_s = max(
        _never(outages.seconds_to_response(seen[path], healed_s, good=True)) for path in CALLS
    )
    return [
        Measure(
            promise="P11",
            what=f"{name}: answers that are neither good nor a proper 503",
            value=len(improper_refusals),
            size=len(calls),
            evidence=outages.told(improper_refusals),
        ),
        Measure(
            promise="P11",
            what=f"{name}: longest answer",
            unit="s",
            value=round(outages.longest_response_s(calls), 2),
            limit=ANSWER_S_MAX,
            size=len(calls),
        ),
        Measure(
            promise="P11",
            what=f"{name}: from heal to service",
            unit="s",
            value=round(back_s, 2),
            limit=RETURN_S_MAX,
        ),
        Measure(
            promise="P11",
            what=f"{name}: liveness failures",
            value=sum(probe.status != 200 for probe in seen[ALIVE]),
            size=len(seen[ALIVE]),
        ),
    ]


def check_readiness(
    name: str, seen: Sequence[Probe], began_s: float, healed_s: float, *, must_flip: bool
) -> list[Measure]:
    """Judge one loss, which was beginning at `began_s`: good before it, bad in it, good after it.

    A restart may be over before anybody asks, so `must_flip` is False there.
    """
    flip_s = outages.seconds_to_response(seen, began_s, good=False)
    flip = Measure(
        promise="P11",
        what=f"{name}: until readiness says so",
        unit="s",
        value=round(_never(flip_s), 2),
        limit=FLIP_S_MAX,
        size=len(seen),
    )
    back_s = outages.seconds_to_response(seen, healed_s, good=True)
    return [
        Measure(
            promise="P11",
            what=f"{name}: losses before which readiness was bad",
            value=int(not outages.was_available(seen, began_s)),
            size=len(seen),
        ),
        *([flip] if must_flip else []),
        Measure(
            promise="P11",
            what=f"{name}: from heal to readiness",
            unit="s",
            value=round(_never(back_s), 2),
            limit=RETURN_S_MAX,
            size=len(seen),
        ),
    ]


def _never(seconds: float | None) -> float:
    return float("inf") if seconds is None else seconds
