"""P11: with Postgres away every request ends within 10 s with 503, and service returns soon."""

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from chaos.drills.setting import Setting
from chaos.judges import outages
from chaos.judges.outages import Probe
from chaos.measures import Measure
from chaos.nemeses import network, services
from chaos.nemeses.cure import Cure
from chaos.probing import Prober

ANSWER_S_MAX: Final = 10.0
RETURN_S_MAX: Final = 5.0
FLIP_S_MAX: Final = 5.0
BEFORE_S: Final = 2.0
AFTER_S: Final = 6.0
READY: Final = "/readyz"
ALIVE: Final = "/healthz"
LIST: Final = "list batches"
CREATE: Final = "upload a file"
CALLS: Final = (LIST, CREATE)

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
}


def run(setting: Setting) -> list[Measure]:
    """Take Postgres away in each way, and probe meanwhile."""
    running = setting.running
    away_s = setting.size(30, 11)
    ways: dict[str, tuple[Callable[[], Cure], float]] = {
        "immediate restart": (lambda: services.restart_at_once(running, "postgres"), 0.0),
        "stopped": (lambda: services.pause(running, "postgres"), away_s),
        "black hole": (lambda: network.misbehave(running, "postgres-a:blackhole"), away_s),
        "refused": (lambda: network.misbehave(running, "postgres-a:refuse"), away_s / 2),
    }
    measures = []
    host = running.hosts["a"]
    for name, (take_away, lasts_s) in ways.items():
        prober = Prober(setting.recorder, host.url, host.key, ASKS)
        time.sleep(BEFORE_S)
        lost_s = time.time()
        give_back = take_away()
        time.sleep(lasts_s)
        give_back()
        healed_s = time.time()
        time.sleep(AFTER_S)
        prober.stop()
        seen = {
            path: [
                p
                for p in outages.probes(setting.recorder.so_far(), path)
                if p.asked_s > lost_s - BEFORE_S
            ]
            for path in ASKS
        }
        measures += _judge(name, seen, lost_s if lasts_s else None, healed_s)
    return measures


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
