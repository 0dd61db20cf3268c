"""A POST that is sent twice has its effect once."""

import uuid

import openai

from tests.sdk.checks.lossy_proxy import lossy_proxy
from tests.sdk.checks.site import Site, equal, refused


def a_file_with_a_key(site: Site) -> None:
    headers = {"Idempotency-Key": uuid.uuid4().hex}
    raw = site.client.files.with_raw_response
    answers = [
        raw.create(file=("in.jsonl", b"{}"), purpose="batch", extra_headers=headers)
        for _ in range(2)
    ]
    equal(answers[0].parse(), answers[1].parse())
    marks = [answer.headers.get("idempotent-replayed") for answer in answers]
    equal(marks, [None, "true"])


def a_batch_with_a_key(site: Site) -> None:
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


def another_body_under_the_same_key(site: Site) -> None:
    client, headers = site.client, {"Idempotency-Key": uuid.uuid4().hex}
    client.files.create(file=b"{}", purpose="batch", extra_headers=headers)
    error = refused(
        openai.UnprocessableEntityError,
        client.files.create,
        file=b"[]",
        purpose="batch",
        extra_headers=headers,
    )
    equal((error.status_code, error.code), (422, "idempotency_key_reused"))


def a_lost_answer_that_the_client_asks_for_again(site: Site) -> None:
    """It sends no key; its count of tries is enough."""
    with lossy_proxy(site.url) as address:
        client = openai.OpenAI(base_url=f"{address}/v1", api_key=site.key, max_retries=2)
        raw = client.files.with_raw_response.create(file=("lost.jsonl", b"{}"), purpose="batch")
        equal((raw.retries_taken, raw.headers["idempotent-replayed"]), (1, "true"))
        file = raw.parse()
        job = client.batches.create(
            input_file_id=file.id, endpoint="/v1/embeddings", completion_window="24h"
        )
    named_so = [one.id for one in site.client.files.list() if one.filename == "lost.jsonl"]
    equal(named_so, [file.id])
    of_file = [one.id for one in site.client.batches.list() if one.input_file_id == file.id]
    equal(of_file, [job.id])
