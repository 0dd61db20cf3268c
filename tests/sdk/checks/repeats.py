"""A repeated POST has its effect once."""

import uuid

import openai

from tests.sdk.checks.lossy_proxy import lossy_proxy
from tests.sdk.checks.site import Site, equal


def file_with_a_key(site: Site) -> None:
    headers = {"Idempotency-Key": uuid.uuid4().hex}
    raw = site.client.files.with_raw_response
    answers = [
        raw.create(file=("in.jsonl", b"{}"), purpose="batch", extra_headers=headers)
        for _ in range(2)
    ]
    equal(answers[0].parse(), answers[1].parse())
    marks = [answer.headers.get("idempotent-replayed") for answer in answers]
    equal(marks, [None, "true"])


def batch_with_a_key(site: Site) -> None:
    headers = {"Idempotency-Key": uuid.uuid4().hex}
    file = site.client.files.create(file=b"{}", purpose="batch")
    ids = [
        site.client.batches.create(
            input_file_id=file.id,
            endpoint="/v1/embeddings",
            completion_window="24h",
            extra_headers=headers,
        ).id
        for _ in range(2)
    ]
    equal(ids[0], ids[1])


def retry_after_a_lost_response(site: Site) -> None:
    """The client sends no key; its retry count is enough."""
    with lossy_proxy(site.url) as address:
        client = openai.OpenAI(base_url=f"{address}/v1", api_key=site.key, max_retries=2)
        raw = client.files.with_raw_response.create(file=("lost.jsonl", b"{}"), purpose="batch")
        equal((raw.retries_taken, raw.headers["idempotent-replayed"]), (1, "true"))
        file = raw.parse()
        job = client.batches.create(
            input_file_id=file.id, endpoint="/v1/embeddings", completion_window="24h"
        )
    same_name = [one.id for one in site.client.files.list() if one.filename == "lost.jsonl"]
    equal(same_name, [file.id])
    of_file = [one.id for one in site.client.batches.list() if one.input_file_id == file.id]
    equal(of_file, [job.id])
