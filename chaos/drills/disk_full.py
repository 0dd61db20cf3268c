"""P12: a full disk stops acknowledgements, corrupts nothing, and clears by itself."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from chaos import evidence
from chaos.clients import ENDPOINT, TERMINAL, input_lines
from chaos.drills.setting import MODEL, Setting
from chaos.judges import outages
from chaos.judges.acceptance import broken_promises, probed_ids
from chaos.measures import Measure
from chaos.nemeses import disk
from chaos.probing import Prober

SIZE_MB: Final = 256
HEALTHY_S_MAX: Final = 60.0
ANSWER_S_MAX: Final = 10.0
END_S_MAX: Final = 240.0
BEFORE_S: Final = 3.0
FOLDERS: Final = {
    "database": "services/postgres",
    "log": "services/kafka-1",
    "object store": "host-a/objects",
}
UPLOAD: Final = "upload a file"
CREATE: Final = "create batch"
ITEMS: Final = 20


def run(setting: Setting) -> list[Measure]:
    """Fill each disk in turn, hold it full, give the space back."""
    client = setting.client("disk")
    file_id = client.upload(
        f"disk-{setting.seed}", input_lines(ITEMS, MODEL), time.monotonic() + 60
    )
    asks: dict[str, Mapping[str, Any]] = {
        UPLOAD: {
            "method": "POST",
            "url": "/v1/files",
            "files": {"file": ("in.jsonl", b"{}\n" * 2000)},
            "data": {"purpose": "batch"},
        },
        CREATE: {
            "method": "POST",
            "url": "/v1/batches",
            "json": {
                "input_file_id": file_id,
                "endpoint": ENDPOINT,
                "completion_window": "24h",
            },
        },
    }
    measures = []
    for name, folder in FOLDERS.items():
        measures += _fill(setting, name, setting.running.shape.data / folder, asks)
    jobs = {job for job in probed_ids(setting.recorder.so_far()) if job.startswith("batch_")}
    setting.client("end").await_ends(jobs, time.monotonic() + END_S_MAX)
    broken = broken_promises(jobs, evidence.states(setting.running.engine), TERMINAL)
    for unhappy in evidence.stuck(setting.running.engine):
        setting.note(f"stuck: {unhappy}")
    return [
        *measures,
        Measure(
            promise="P12",
            what="acknowledged jobs missing or not terminal",
            value=len(broken),
            size=len(jobs),
            evidence="; ".join(f"{job}: {state}" for job, state in list(broken.items())[:5]),
        ),
    ]


def _fill(
    setting: Setting, name: str, folder: Path, asks: Mapping[str, Mapping[str, Any]]
) -> list[Measure]:
    host = setting.running.hosts["a"]
    prober = Prober(setting.recorder, host.url, host.key, asks)
    time.sleep(BEFORE_S)
    full_s = time.time()
    free = disk.fill(folder)
    time.sleep(setting.size(60, 15))
    free()
    freed_s = time.time()
    took_s = _healthy_after(setting, freed_s)
    prober.stop()
    history = setting.recorder.so_far()
    seen = [p for path in asks for p in outages.probes(history, path) if p.asked_s >= full_s]
    improper = outages.improper(seen, proper=(503, 507))
    refused = sum(not 200 <= probe.status < 300 for probe in seen)
    setting.note(f"{name}: {refused} of {len(seen)} refused, healthy after {took_s:.1f} s")
    return [
        Measure(
            promise="P12",
            what=f"{name} full: answers that are neither good nor 503 or 507",
            value=len(improper),
            size=len(seen),
            evidence=outages.told(improper),
        ),
        Measure(
            promise="P12",
            what=f"{name} full: longest answer",
            unit="s",
            value=round(outages.longest_s(seen), 2),
            limit=ANSWER_S_MAX,
            size=len(seen),
        ),
        Measure(
            promise="P12",
            what=f"{name} full: from space to a new job's end",
            unit="s",
            value=round(took_s, 2),
            limit=HEALTHY_S_MAX,
        ),
    ]


def _healthy_after(setting: Setting, freed_s: float) -> float:
    """Return seconds from the moment of space until a job that was then created has ended."""
    client = setting.client("healthy")
    until_s = time.monotonic() + 2 * HEALTHY_S_MAX
    key = f"healthy-{freed_s}"
    file_id = client.upload(f"file-{key}", input_lines(ITEMS, MODEL), until_s)
    job = client.create(key, file_id, until_s)
    if not client.await_ends([job["id"]], until_s):
        return float("inf")
    return time.time() - freed_s
