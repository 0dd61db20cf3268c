"""Goal: a batch that has ended is deleted by its owner alone, once, and for good."""

import httpx
import sqlalchemy as sa

from core.ids import FILE, JOB, parse_public_id
from jobs.tables.files import files
from tenancy.deletions import deletions
from tests.integration.api.answers import batch_id, file_id, ok, refused
from tests.integration.api.sites import Site
from tests.integration.api.test_batches import set_job


def ended(site: Site, batch: str) -> None:
    set_job(site, batch, state="failed", failed_at=sa.func.now())


def told(site: Site) -> list[tuple[str, object, object]]:
    query = sa.select(deletions.c.what, deletions.c.subject_id, deletions.c.key_id)
    query = query.where(deletions.c.tenant_id == site.tenant_id).order_by(deletions.c.id)
    with site.engine.connect() as connection:
        return [tuple(row) for row in connection.execute(query)]


def test_a_deleted_batch_is_shown_nowhere(site: Site, client: httpx.Client) -> None:
    batch = batch_id(client)
    source = ok(client.get(f"/v1/batches/{batch}"))["input_file_id"]
    path = f"/v1/batches/{batch}"
    ended(site, batch)
    assert ok(client.delete(path)) == {"id": batch, "object": "batch", "deleted": True}

    assert ok(client.get("/v1/batches"))["data"] == []
    for suffix in ("", "/items", "/results", "/audit"):
        assert refused(client.get(path + suffix), 404)["code"] == "batch_not_found"
    for suffix in ("", "/cancel", "/pause", "/seal"):
        answer = client.post(path + suffix, json={})
        assert refused(answer, 404)["code"] == "batch_not_found"
    assert refused(client.delete(path), 404)["code"] == "batch_not_found"
    assert refused(client.get(f"/v1/files/{source}"), 404)["code"] == "file_not_found"
    newest = ok(client.get("/v1/audit_log"))["data"][0]
    assert (newest["action"], newest["subject"]) == ("job.deleted", batch)
    assert newest["details"] == {"items": 0, "files": 1}
    assert told(site) == [("batch", parse_public_id(JOB, batch), site.key.key_id)]


def test_running_and_foreign_batches_are_not_deleted(site: Site) -> None:
    with site.client() as client, site.client(site.other_key) as other:
        batch = batch_id(client)
        path = f"/v1/batches/{batch}"
        answer = client.delete(path)
        error = refused(answer, 409)
        assert (error["code"], answer.headers["x-should-retry"]) == ("batch_not_ended", "false")
        assert "validating" in (error["message"] or "")
        foreign = refused(other.delete(path), 404)
        assert foreign == refused(other.delete("/v1/batches/batch_" + "0" * 32), 404)
        assert foreign == refused(other.delete("/v1/batches/none"), 404)
        assert ok(client.get(path))["status"] == "validating"
    assert told(site) == []


def test_a_deleted_file_is_recorded_and_removed(site: Site, client: httpx.Client) -> None:
    source = file_id(client)
    ok(client.delete(f"/v1/files/{source}"))
    newest = ok(client.get("/v1/audit_log"))["data"][0]
    assert (newest["action"], newest["subject"]) == ("file.deleted", source)
    assert site.stored() == []
    file = parse_public_id(FILE, source)
    assert told(site) == [("file", file, site.key.key_id)]
    with site.engine.connect() as connection:
        gone = sa.select(files.c.removed_at).where(files.c.id == file)
        assert connection.execute(gone).scalar_one() is not None
