"""Batches, through the client."""

import json

import openai
from openai.types import Batch

from tests.sdk.checks.batch_inputs import batch_input, created_batch
from tests.sdk.checks.site import Site, equal, poll, refused

_ENDED = {"completed", "failed", "expired", "cancelled"}


def runs_from_input_to_output_file(site: Site) -> None:
    client = site.client
    job = created_batch(site, 5)
    equal((job.object, job.status, job.endpoint), ("batch", "validating", "/v1/chat/completions"))
    equal((job.completion_window, job.output_file_id, job.errors), ("24h", None, None))
    equal((job.expires_at or 0) - job.created_at, 24 * 3600)
    done = poll(lambda: client.batches.retrieve(job.id), _has_ended)
    equal(done.status, "completed")
    counts = done.request_counts
    equal(counts and (counts.total, counts.completed, counts.failed), (5, 5, 0))
    assert done.output_file_id is not None
    lines = [json.loads(line) for line in client.files.content(done.output_file_id).iter_lines()]
    equal([line["custom_id"] for line in lines], [f"item-{n}" for n in range(5)])
    equal({line["response"]["status_code"] for line in lines}, {200})
    equal(client.files.retrieve(done.output_file_id).purpose, "batch_output")


def carries_its_metadata(site: Site) -> None:
    metadata = {"run": "7", "größe": "数"}
    job = created_batch(site, 1, metadata=metadata)
    equal(job.metadata, metadata)
    equal(site.client.batches.retrieve(job.id).metadata, metadata)
    equal(created_batch(site, 1).metadata, None)


def has_expiring_output(site: Site) -> None:
    client = site.client
    expiry = {"output_expires_after": {"anchor": "created_at", "seconds": 7200}}
    job = created_batch(site, 1, extra_body=expiry)
    done = poll(lambda: client.batches.retrieve(job.id), _has_ended)
    assert done.output_file_id is not None
    output = client.files.retrieve(done.output_file_id)
    equal((output.expires_at or 0) - output.created_at, 7200)


def listed_in_pages(site: Site) -> None:
    ids = [created_batch(site, 1).id for _ in range(5)]
    listed = site.client.batches.list(limit=2)
    equal(len(listed.data), 2)
    equal([job.id for _, job in zip(range(5), listed, strict=False)], ids[::-1])
    after = site.client.batches.list(after=ids[4], limit=100)
    equal([job.id for job in after][:4], ids[3::-1])


def cancelled_while_running(site: Site) -> None:
    client = site.client
    job = created_batch(site, 3000)
    cancelling = client.batches.cancel(job.id)
    equal(cancelling.status in {"cancelling", "cancelled"}, True)
    done = poll(lambda: client.batches.retrieve(job.id), _has_ended)
    equal(done.status, "cancelled")
    error = refused(openai.BadRequestError, lambda: client.batches.cancel(job.id))
    equal(error.code, "batch_ended")


def fails_with_the_line(site: Site) -> None:
    client = site.client
    file = client.files.create(file=b"{not json}\n", purpose="batch")
    job = client.batches.create(
        input_file_id=file.id, endpoint="/v1/embeddings", completion_window="24h"
    )
    done = poll(lambda: client.batches.retrieve(job.id), _has_ended)
    equal(done.status, "failed")
    errors = done.errors and done.errors.data
    equal([(e.code, e.line) for e in errors or []], [("invalid_json_line", 1)])


async def through_the_async_client(site: Site) -> None:
    async with site.async_client as client:
        job = await client.batches.create(
            input_file_id=batch_input(site, 1),
            endpoint="/v1/chat/completions",
            completion_window="24h",
        )
        equal((await client.batches.retrieve(job.id)).id, job.id)
        async for newest in client.batches.list(limit=1):
            equal(newest.id, job.id)
            break


def _has_ended(job: Batch) -> bool:
    return job.status in _ENDED
