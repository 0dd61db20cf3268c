"""Goal: the open batches and uploaded files of a tenant are limited."""

import httpx
import sqlalchemy as sa

from core.states import JobState
from jobs.store.files import RESULT_PURPOSE
from jobs.tables.jobs import jobs
from tests.integration.api.answers import batch_body, file_id, ok, refused, upload
from tests.integration.api.sites import OpenSite, Site
from tests.integration.jobs.rows import add_file, add_job

BATCHES = "/v1/batches"


def quota_error(answer: httpx.Response) -> str | None:
    """Return the code of a refusal that clients do not try again."""
    error = refused(answer, 429)
    assert error["type"] == "insufficient_quota"
    assert answer.headers["x-should-retry"] == "false"
    assert "retry-after" not in answer.headers
    return error["code"]


def end_closing(site: Site) -> None:
    """End every job that is being closed, as the finaliser does."""
    with site.engine.begin() as connection:
        closing = sa.update(jobs).where(jobs.c.state == JobState.CANCELLING.value)
        connection.execute(
            closing.values(state=JobState.CANCELLED.value, cancelled_at=sa.func.now())
        )


def test_open_batches_are_limited(open_site: OpenSite) -> None:
    site = open_site(open_batches_max=2)
    with site.client() as client, site.client(site.other_key) as other:
        source = file_id(client)
        first = ok(client.post(BATCHES, json=batch_body(source), headers={"Idempotency-Key": "k"}))
        ok(client.post(BATCHES, json=batch_body(source, sealed=False)))
        assert quota_error(client.post(BATCHES, json=batch_body(source))) == "batch_limit_exceeded"

        # What was answered before is given again, and others have limits of their own.
        again = client.post(BATCHES, json=batch_body(source), headers={"Idempotency-Key": "k"})
        assert ok(again) == first
        ok(other.post(BATCHES, json=batch_body(file_id(other))))

        # One that is being closed is open; one that has ended is not.
        ok(client.post(f"{BATCHES}/{first['id']}/cancel"))
        refused(client.post(BATCHES, json=batch_body(source)), 429)
        end_closing(site)
        ok(client.post(BATCHES, json=batch_body(source)))


def test_single_requests_do_not_count_as_open_batches(open_site: OpenSite) -> None:
    site = open_site(open_batches_max=1)
    with site.engine.begin() as connection:
        for _ in range(3):
            add_job(connection, site.tenant_id, kind="request", input_file_id=None)
    with site.client() as client:
        source = file_id(client)
        ok(client.post(BATCHES, json=batch_body(source)))
        refused(client.post(BATCHES, json=batch_body(source)), 429)


def test_uploaded_files_are_limited(open_site: OpenSite) -> None:
    site = open_site(files_max=2)
    with site.client() as client, site.client(site.other_key) as other:
        first, second = file_id(client), file_id(client)
        before = site.stored()
        assert quota_error(upload(client, b"")) == "file_limit_exceeded"
        assert site.stored() == before
        ok(upload(other, b""))

        # One that a batch still reads counts, though its owner deleted it.
        ok(client.post(BATCHES, json=batch_body(first)))
        ok(client.delete(f"/v1/files/{first}"))
        refused(upload(client, b""), 429)
        ok(client.delete(f"/v1/files/{second}"))
        ok(upload(client, b""))


def test_result_files_do_not_count(open_site: OpenSite) -> None:
    site = open_site(files_max=1)
    with site.engine.begin() as connection:
        for _ in range(3):
            add_file(connection, site.tenant_id, purpose=RESULT_PURPOSE)
    with site.client() as client:
        ok(upload(client, b""))
        refused(upload(client, b""), 429)
