"""Goal: a job keeps what its model names meant when it was created, for each of its items."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

from core.ids import new_uuid
from jobs.expansion.job_loads import OPEN, open_jobs
from jobs.store.single_requests import NewRequest, create_request
from jobs.validation.validation_process import ValidationProcesses
from registry.tables import model_names, model_versions
from storage.objects.object_store import write_object
from tests.integration.jobs.log_reader import chunks_by_partition
from tests.integration.jobs.ordered_jobs import CHAT
from tests.integration.jobs.ordered_jobs import Site as OrderedSite
from tests.integration.jobs.retries import RetryProcess
from tests.integration.jobs.rows import add_job, execute
from tests.integration.jobs.stores import Stores
from topics.records.records import Chunk

BASE, LAW, MED = "0" * 64, "a" * 64, "b" * 64


class Site(OrderedSite):
    """Each job has a file of its own."""

    def add(self, lines: Sequence[bytes], **columns: Any) -> UUID:
        self.lines = [*lines]
        content, key = b"\n".join(lines), f"files/{new_uuid().hex}"
        write_object(self.objects, key, content)
        given = {"endpoint": CHAT, "input_key": key, "input_bytes": len(content)}
        with self.engine.begin() as connection:
            return add_job(connection, self.tenant_id, **(given | columns))


@pytest.fixture
def site(stores: Stores, processes: ValidationProcesses) -> Iterator[Site]:
    site = Site(stores, processes)
    push(site, "small", BASE)  # the newest version, as the site has a legacy one
    yield site
    for process in site.started:
        process.jobs.close()


def push(site: Site, name: str, version: str, **columns: Any) -> None:
    """Register a version; it is the newest meaning of its name."""
    row = {"name": name, "version": version, "pool": "pool-small", "engine": "vllm"}
    row |= {"endpoints": [CHAT], "verification": "unverified"} | columns
    execute(site.engine, model_versions.insert().values(registered_at=clock(), **row))


def clock() -> sa.ColumnElement[Any]:
    return sa.func.clock_timestamp()


def point(site: Site, alias: str, target: str | None, **columns: Any) -> None:
    """Let an alias mean something from now on."""
    execute(site.engine, model_names.insert().values(name=alias, alias_of=target, **columns))


def line(custom_id: str, model: str) -> bytes:
    body = {"model": model, "messages": [{"role": "user", "content": custom_id}]}
    request = {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body}
    return json.dumps(request).encode()


def lines(models: list[str], start: str = "i") -> list[bytes]:
    return [line(f"{start}-{number}", model) for number, model in enumerate(models)]


def errors(site: Site, job_id: UUID) -> list[tuple[int, str, str]]:
    row = site.row(job_id)
    assert row.state == "failed"
    return [(error["line"], error["code"], error["param"]) for error in row.errors]


def by_model(site: Site) -> dict[tuple[str, str, str], list[int]]:
    """The items on the log by model, version and base version, repeats included."""
    found: dict[tuple[str, str, str], list[int]] = {}
    chunks: list[Chunk] = [c for some in chunks_by_partition(site.kafka).values() for c in some]
    for chunk in chunks:
        key = (chunk.job.model, chunk.job.model_version, chunk.job.base_version)
        found.setdefault(key, []).extend(item.index for item in chunk.items)
        for item in chunk.items:
            assert json.loads(item.body)["model"] == chunk.job.model
    return {key: sorted(numbers) for key, numbers in found.items()}


def test_job_keeps_what_alias_and_name_meant_when_it_was_created(site: Site) -> None:
    point(site, "prod", "small")
    by_alias, by_name = site.add(lines(["prod"] * 3)), site.add(lines(["small"] * 3))
    push(site, "small", "2")
    point(site, "prod", "small@2")
    after = site.add(lines(["prod"] * 3))

    site.validate()

    for job_id, model, version in ((by_alias, "prod", BASE), (by_name, "small", BASE)):
        row = site.row(job_id)
        assert (row.state, row.model, row.model_version) == ("in_progress", model, version)
        assert row.models is None
    assert site.row(after).model_version == "2"


def test_version_that_is_retired_later_stays_with_the_job(site: Site) -> None:
    before = site.add(lines(["small"]), sealed=False, total_final=False)
    retire = sa.update(model_versions).values(retired_at=clock())
    execute(site.engine, retire.where(model_versions.c.name == "small"))
    after = site.add(lines(["small"]))

    site.validate()
    site.append(before, lines(["small", f"small@{BASE[:12]}"], "more"))

    assert site.row(before).total_count == 3
    assert errors(site, after) == [(1, "model_retired", "body.model")]


def test_private_adapter_is_unknown_to_other_tenants(site: Site) -> None:
    push(site, "small:law", LAW, base_version=BASE, tenant_id=site.tenant_id)
    push(site, "small:med", MED, base_version=BASE, tenant_id=new_uuid())
    mine, other = site.add(lines(["small:law"])), site.add(lines(["small:med"]))

    site.validate()

    assert site.row(mine).models == {"small:law": {"version": LAW, "base_version": BASE}}
    assert errors(site, other) == [(1, "model_not_found", "body.model")]


def test_errors_of_a_file_with_several_models_name_line_and_field(site: Site) -> None:
    push(site, "small:law", LAW, base_version=BASE)
    push(site, "large", "d" * 64)
    push(site, "elsewhere", "1", pool="pool-2")
    push(site, "small:embed", MED, base_version=BASE, endpoints=["/v1/embeddings"])
    names = ["small", "small:law", "large", "elsewhere", "absent", "small:embed", "small", "large"]
    job_id = site.add(lines(names))

    site.validate()

    assert errors(site, job_id) == [
        (3, "model_mismatch", "body.model"),
        (4, "model_mismatch", "body.model"),
        (5, "model_not_found", "body.model"),
        (6, "endpoint_not_supported", "body.model"),
        (8, "model_mismatch", "body.model"),
    ]


def test_several_models_are_refused_while_the_installation_is_upgraded(site: Site) -> None:
    push(site, "small:law", LAW, base_version=BASE)
    mixed = site.add(lines(["small", "small:law"]))
    adapter, plain = site.add(lines(["small:law"])), site.add(lines(["small", "small"]))

    site.validate(several_models=False)

    refusal = ("several_models_off", "body.model")
    assert errors(site, mixed) == [(2, *refusal)]
    assert errors(site, adapter) == [(1, *refusal)]
    assert site.row(plain).state == "in_progress"


def mixed_job(site: Site, count: int = 300, **columns: Any) -> tuple[UUID, dict[Any, list[int]]]:
    """A valid job with three models; and which items each has."""
    push(site, "small:law", LAW, base_version=BASE)
    push(site, "small:med", MED, base_version=BASE)
    point(site, "legal", "small:law")
    names = ["small", "small:med", "legal"]
    job_id = site.job(lines([names[n % 7 % 3] for n in range(count)]), **columns)
    keys = [("small", BASE, ""), ("small:med", MED, BASE), ("legal", LAW, BASE)]
    return job_id, {
        key: [n for n in range(count) if n % 7 % 3 == place] for place, key in enumerate(keys)
    }


def test_each_item_is_emitted_once_with_its_model_through_crashes(site: Site) -> None:
    job_id, expected = mixed_job(site)
    row = site.row(job_id)
    assert (row.model, row.model_version, row.pool) == ("small", BASE, "pool-small")
    assert row.models["legal"] == {"version": LAW, "base_version": BASE}
    push(site, "small:med", "c" * 64, base_version=BASE)

    first = site.start("a")
    first.expander.run_once({job_id: 110})
    first.die()
    site.start("b").emit_all(at_once=90)

    assert by_model(site) == expected


def test_lost_items_are_emitted_again_with_their_models(site: Site) -> None:
    job_id, expected = mixed_job(site, 30)
    process = site.start()
    process.emit_all()
    site.write_rows(job_id, [0, 1, 2])

    assert site.emitter(process).re_emit_job(job_id, OPEN) == 27

    found = by_model(site)
    for key, numbers in expected.items():
        assert found[key] == sorted(numbers + [n for n in numbers if n > 2])


def test_retries_have_the_models_of_their_items(site: Site, retries: RetryProcess) -> None:
    job_id, expected = mixed_job(site, 30)
    site.start().emit_all()
    retries.schedule(job_id, 1, 2, 3, 9)
    retries.forget_offsets()

    retries.run()

    found = by_model(site)
    again = {1, 2, 3, 9}
    for key, numbers in expected.items():
        assert found[key] == sorted(numbers + [n for n in numbers if n in again])


def test_appended_file_may_add_a_name_and_resolves_as_of_the_creation(site: Site) -> None:
    push(site, "small:law", LAW, base_version=BASE)
    job_id = site.job(lines(["small"] * 3), sealed=False, total_final=False)
    push(site, "small:law", "c" * 64, base_version=BASE)
    push(site, "small", "2")
    process = site.start()
    process.emit_all()

    site.append(job_id, lines(["small", "small:law"], "more"))
    process.emit_all()

    row = site.row(job_id)
    assert (row.model, row.model_version) == ("small", BASE)
    assert row.models == {
        "small": {"version": BASE, "base_version": ""},
        "small:law": {"version": LAW, "base_version": BASE},
    }
    assert by_model(site) == {
        ("small", BASE, ""): [0, 1, 2, 3], ("small:law", LAW, BASE): [4]
    }  # fmt: skip


def test_items_of_one_adapter_carry_its_base_version(site: Site) -> None:
    push(site, "small:law", LAW, base_version=BASE)
    site.job(lines(["small:law"] * 5))
    site.start().emit_all()
    assert by_model(site) == {("small:law", LAW, BASE): [0, 1, 2, 3, 4]}


def test_single_request_for_an_adapter_keeps_its_base_version(site: Site) -> None:
    new = {"endpoint": CHAT, "pool": "pool-small", "input_bytes": 1, "timeout_s": 60.0}
    pinned = NewRequest(
        job_id=new_uuid(),
        tenant_id=site.tenant_id,
        model="small:law",
        model_version=LAW,
        base_version=BASE,
        input_key="requests/a",
        **new,  # type: ignore[arg-type]
    )
    plain = replace(pinned, job_id=new_uuid(), model_version=BASE, base_version="")
    with site.engine.begin() as connection:
        create_request(connection, pinned)
        create_request(connection, plain)
        found = open_jobs(connection, [pinned.job_id, plain.job_id])

    refs = [found[one.job_id].ref for one in (pinned, plain)]
    assert [(ref.model_version, ref.base_version) for ref in refs] == [(LAW, BASE), (BASE, "")]
    assert site.row(plain.job_id).models is None


def test_ordered_items_of_several_models_keep_their_models(site: Site) -> None:
    push(site, "small:law", LAW, base_version=BASE)
    prompt = "x" * 2000
    names = ["small", "small:law"]
    texts = [f"{'abc'[n % 3]}{prompt}{n}" for n in range(600)]
    requests = [
        {
            "custom_id": f"{n}",
            "method": "POST",
            "url": CHAT,
            "body": {"model": names[n % 2], "messages": [{"role": "user", "content": text}]},
        }
        for n, text in enumerate(texts)
    ]
    job_id = site.job([json.dumps(request).encode() for request in requests])
    assert site.row(job_id).order_key is not None

    site.start().emit_all(at_once=500)

    assert by_model(site) == {
        ("small", BASE, ""): list(range(0, 600, 2)),
        ("small:law", LAW, BASE): list(range(1, 600, 2)),
    }
