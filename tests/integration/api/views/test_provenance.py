"""Goal: an owner sees which model version and engine made each result, by every route."""

import json
from typing import Any

import httpx

from results.writer.provenance import Provenance
from storage.objects.object_store import write_object
from tests.integration.api.answers import ok, refused
from tests.integration.api.sites import Site
from tests.integration.api.views.batches import RunningBatch, add_batch, lines
from tests.integration.results.outcomes import failed, outcome

BASE, LAW, ENGINE = "0" * 64, "a" * 64, "e" * 64
SMALL = Provenance("small", BASE, "", ENGINE)
ADAPTER = Provenance("law", LAW, BASE, ENGINE)
LEGACY = Provenance("old", "2026-01 best", "", "")
SHOWN_SMALL = {"version": BASE[:12], "engine": ENGINE[:12]}
SHOWN_ADAPTER = {"version": LAW[:12], "engine": ENGINE[:12]}
SHOWN = [SHOWN_SMALL, SHOWN_ADAPTER, {"version": "2026-01 best"}, SHOWN_ADAPTER, SHOWN_SMALL, None]
MODELS = {
    "small": {"version": BASE, "base_version": ""},
    "law": {"version": LAW, "base_version": BASE},
}


def mixed(site: Site) -> RunningBatch:
    """Six items: of five it is known what ran them, one of them failed, one answer is large."""
    batch = add_batch(site, 6, model="small", model_version=BASE, models=MODELS)
    write_object(site.objects, f"answers/{batch.job_id.hex}/4", b'{"large":1}')
    batch.run(SMALL, outcome(0), outcome(4, body=b"", body_key=f"answers/{batch.job_id.hex}/4"))
    batch.run(ADAPTER, failed(3), outcome(1))
    batch.run(LEGACY, outcome(2))
    return batch


def test_items_and_lines_of_stream_and_files_tell_version_and_engine(
    site: Site, client: httpx.Client
) -> None:
    batch = mixed(site)
    waiting = ok(client.get(f"{batch.path}/items"))["data"]
    batch.write(outcome(5))  # of a release that did not tell
    items = ok(client.get(f"{batch.path}/items"))["data"]
    one = ok(client.get(f"{batch.path}/items/request-3"))
    before = lines(client.get(f"{batch.path}/results"))
    batch.finalise()
    after = lines(client.get(f"{batch.path}/results"))

    assert [item["millrace"] for item in items] == SHOWN
    assert [item["model_version"] for item in items] == [
        BASE, LAW, "2026-01 best", LAW, BASE, None
    ]  # fmt: skip
    assert one["millrace"] == SHOWN_ADAPTER
    assert waiting[5]["millrace"] is waiting[5]["model_version"] is None
    assert after == before
    assert [(line["custom_id"], line.get("millrace")) for line in after] == [
        (f"request-{n}", SHOWN[n]) for n in (0, 4, 3, 1, 2, 5)
    ]
    shown = ok(client.get(batch.path))
    written: dict[str, Any] = {}
    for name in ("output_file_id", "error_file_id"):
        content = client.get(f"/v1/files/{shown[name]}/content").text
        written |= {line["custom_id"]: line for line in map(json.loads, content.splitlines())}
    assert [written[f"request-{n}"].get("millrace") for n in range(6)] == SHOWN
    assert list(written["request-0"]) == ["id", "custom_id", "response", "error", "millrace"]
    assert list(after[0])[-2:] == ["millrace", "sequence"]


def test_batch_shows_its_models_and_counts_of_what_ran_its_items(
    site: Site, client: httpx.Client
) -> None:
    batch = mixed(site)
    batch.write(outcome(5))

    found = ok(client.get(f"{batch.path}/provenance"))

    assert found == {
        "object": "list",
        "batch_id": batch.id,
        "data": [
            shown("small", BASE, None, ENGINE, 2),
            shown("law", LAW, BASE, ENGINE, 2),
            shown("old", "2026-01 best", None, None, 1),
        ],
        "unknown_items": 1,
        "has_more": False,
    }
    assert ok(client.get(batch.path))["millrace"]["models"] == [
        {"model": "law", "version": LAW, "base_version": BASE},
        {"model": "small", "version": BASE, "base_version": None},
    ]
    refused(client.get("/v1/batches/batch_0/provenance"), 404)


def shown(
    model: str, version: str, base_version: str | None, engine: str | None, items: int
) -> dict[str, Any]:
    return {
        "object": "batch.provenance",
        "model": model,
        "version": version,
        "base_version": base_version,
        "engine": engine,
        "items": items,
    }
