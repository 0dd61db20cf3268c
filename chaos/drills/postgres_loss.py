"""P11: with Postgres away every request ends within 10 s with 503, and service returns soon."""

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from chaos.clients import input_lines
from chaos.drills.setting import MODEL, Setting
from chaos.hosts import wait_until
from chaos.installation import Installation
from chaos.judges import outages
from chaos.judges.outages import Probe
from chaos.measures import Measure
from chaos.nemeses import connections, network, services
from chaos.nemeses.cure import Cure
from chaos.probing import Prober

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

READY: Final = "/readyz"
ALIVE: Final = "/healthz"
LIST: Final = "list batches"
CREATE: Final = "upload a file"
CHAT: Final = "complete a chat"
DURABLE: Final = "complete a chat that outlives its connection"
CALLS: Final = (LIST, CREATE, CHAT, DURABLE)
_ONE_CHAT: Final = {
    "method": "POST",
    "url": "/v1/chat/completions",
    "json": {"model": MODEL, "messages": [{"role": "user", "content": "hello"}]},
}

ASKS: Final[Mapping[str, Mapping[str, Any]]] = {
    READY: {"method": "GET", "url": "/readyz"},
    ALIVE: {"method": "GET", "url": "/healthz"},
    LIST: {"method": "GET", "url": "/v1/batches"},
    CREATE: {
        "method": "POST",
        "url": "/v1/files",
        "files": {"file": ("in.jsonl", b"{}\n")},
        "data": {"purpose": "batch"},
    },
    CHAT: _ONE_CHAT,
    DURABLE: _ONE_CHAT | {"headers": {"prefer": "wait=5"}},
}


def run(setting: Setting) -> list[Measure]:
    """Take Postgres away in each way, and probe meanwhile."""
    _call_each_once(setting)
    away_s = setting.size(30, 11)
    measures = []
    for name, (take_away, lasts_s) in _ways(setting.running, away_s).items():
        measures += _lose(setting, name, take_away, lasts_s)
    return measures


def _ways(running: Installation, away_s: float) -> dict[str, tuple[Callable[[], Cure], float]]:
    return {
        "immediate restart": (lambda: services.restart_at_once(running, "postgres"), 0.0),
        "stopped": (lambda: services.pause(running, "postgres"), away_s),
        "black hole": (lambda: network.misbehave(running, "postgres-a:blackhole"), away_s),
        "refused": (lambda: network.misbehave(running, "postgres-a:refuse"), away_s / 2),
        "connections taken": (
            lambda: connections.take_all(running.addresses.database_url),
            away_s,
        ),
    }


def _call_each_once(setting: Setting) -> None:
    """A first call opens connections that later ones keep; that is not what is timed here."""
    client = setting.client("first calls", host="a")

    def is_answered(ask: Mapping[str, Any]) -> bool:
        content = {name: ask[name] for name in ask.keys() - {"method", "url"}}
        answer = client.call(ask["method"], ask["url"], **content)
        return answer is not None and answer.is_success

    for name, ask in ASKS.items():
        wait_until(partial(is_answered, ask), FIRST_S_MAX, name)


def _lose(
    setting: Setting, name: str, take_away: Callable[[], Cure], lasts_s: float
) -> list[Measure]:
    host = setting.running.hosts["a"]
    lives = _lives(setting.running)
    prober = Prober(setting.recorder, host.url, host.key, ASKS)
    time.sleep(BEFORE_S)
    began_s = time.time()
    give_back = take_away()
    lost_s = time.time()
    time.sleep(lasts_s)
    give_back()
    # What it takes to start again is its own; what comes after is ours.
    wait_until(partial(_answers, setting.running.engine), HEAL_S_MAX, "Postgres")
    healed_s = time.time()
    time.sleep(AFTER_S)
    prober.stop()
    ended = sorted(lives - _lives(setting.running))
    seen = {
        path: [
            p
            for p in outages.probes(setting.recorder.so_far(), path)
            if p.asked_s > began_s - BEFORE_S
        ]
        for path in ASKS
    }
    return [
        *_judge(name, seen, lost_s if lasts_s else None, healed_s),
        Measure(
            promise="P11",
            what=f"{name}: roles that ended",
            value=len(ended),
            relation="report",
            size=len(lives),
            evidence=", ".join(role for role, _ in ended),
        ),
        _small_job(setting, name),
    ]


def _answers(engine: sa.Engine) -> bool:
    """Whether Postgres serves whoever asks it past the proxies."""
    try:
        with engine.connect() as connection:
            connection.execute(sa.text("SELECT 1"))
    except SQLAlchemyError:
        return False
    return True


def _lives(running: Installation) -> set[tuple[str, int]]:
    """Return every role of every host with its process."""
    return {
        (f"{host.name}/{role}", pid)
        for host in running.hosts.values()
        for role, pid in host.roles().items()
    }


def _small_job(setting: Setting, name: str) -> Measure:
    client = setting.client(f"after {name}")
    key = f"{name.replace(' ', '-')}-{setting.seed}"
    began_s = time.monotonic()
    until_s = began_s + JOB_S_MAX
    file_id = client.upload(f"file-{key}", input_lines(JOB_ITEMS, MODEL), until_s)
    job = client.create(key, file_id, until_s)
    ended = client.await_ends([job["id"]], until_s)
    return Measure(
        promise="P11",
        what=f"{name}: a job that began after it took",
        unit="s",
        value=round(time.monotonic() - began_s, 2) if ended else float("inf"),
        limit=JOB_S_MAX,
        size=JOB_ITEMS,
    )


def _judge(
    name: str, seen: dict[str, list[Probe]], lost_s: float | None, healed_s: float
) -> list[Measure]:
    calls = [probe for path in CALLS for probe in seen[path]]
    improper = outages.improper(calls)
    back_s = max(_never(outages.seconds_until(seen[path], healed_s, good=True)) for path in CALLS)
    measures = [
        Measure(
            promise="P11",
            what=f"{name}: answers that are neither good nor a proper 503",
            value=len(improper),
            size=len(calls),
            evidence=outages.told(improper),
        ),
        Measure(
            promise="P11",
            what=f"{name}: longest answer",
            unit="s",
            value=round(outages.longest_s(calls), 2),
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
    if lost_s is not None:
        flip_s = outages.seconds_until(seen[READY], lost_s, good=False)
        measures.append(
            Measure(
                promise="P11",
                what=f"{name}: until readiness says so",
                unit="s",
                value=round(_never(flip_s), 2),
                limit=FLIP_S_MAX,
            )
        )
    return measures


def _never(seconds: float | None) -> float:
    return float("inf") if seconds is None else seconds
