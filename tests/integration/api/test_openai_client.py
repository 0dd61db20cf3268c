"""Goal: the official client works unchanged for files, batches and models."""

import io
from collections.abc import Iterator

import openai
import pytest

from core.ids import JOB, parse_public_id
from jobs.tables.jobs import jobs
from tests.integration.api.conftest import Site


@pytest.fixture
def client(site: Site) -> Iterator[openai.OpenAI]:
    """A client as a user builds it, except that failures show at once."""
    base_url = f"{site.url}/v1"
    with openai.OpenAI(base_url=base_url, api_key=site.key.secret, max_retries=0) as opened:
        yield opened


def test_upload_and_download(client: openai.OpenAI) -> None:
    source = io.BytesIO(b'{"custom_id": "1"}\n')
    source.name = "in.jsonl"
    created = client.files.create(
        file=source, purpose="batch", expires_after={"anchor": "created_at", "seconds": 7200}
    )

    assert created.expires_at == created.created_at + 7200
    assert client.files.retrieve(created.id) == created
    assert client.files.wait_for_processing(created.id).status == "processed"
    assert client.files.content(created.id).read() == source.getvalue()
    with client.files.with_streaming_response.content(created.id) as streamed:
        assert b"".join(streamed.iter_bytes()) == source.getvalue()
    assert client.files.delete(created.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(created.id)


def test_lists_are_paged_to_their_end(client: openai.OpenAI) -> None:
    ids = [client.files.create(file=b"{}", purpose="batch").id for _ in range(5)]
    batches = [
        client.batches.create(
            input_file_id=file, endpoint="/v1/embeddings", completion_window="24h"
        ).id
        for file in ids
    ]

    assert [file.id for file in client.files.list(limit=2, order="asc")] == ids
    assert [file.id for file in client.files.list(purpose="batch")] == ids[::-1]
    assert [batch.id for batch in client.batches.list(limit=2)] == batches[::-1]


def test_the_lifecycle_of_a_batch(client: openai.OpenAI, site: Site) -> None:
    source = client.files.create(file=("in.jsonl", b"{}"), purpose="batch")
    created = client.batches.create(
        input_file_id=source.id,
        endpoint="/v1/chat/completions",
        completion_window="24h",
        metadata={"run": "7"},
    )

    assert (created.status, created.metadata) == ("validating", {"run": "7"})
    assert created.expires_at == created.created_at + 24 * 3600
    assert client.batches.retrieve(created.id) == created
    assert client.batches.cancel(created.id).status == "cancelling"
    with site.engine.begin() as connection:
        ended = jobs.update().where(jobs.c.id == parse_public_id(JOB, created.id))
        connection.execute(ended.values(state="cancelled"))
    with pytest.raises(openai.BadRequestError):
        client.batches.cancel(created.id)


def test_models_with_a_slash(client: openai.OpenAI) -> None:
    (model,) = client.models.list()

    assert client.models.retrieve("org/small") == model
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("nope")
    assert caught.value.code == "model_not_found"


def test_errors_become_the_clients_own(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.batches.create(
            input_file_id="file-x", endpoint="/v1/embeddings", completion_window="24h"
        )
    assert caught.value.param == "input_file_id"
    assert caught.value.request_id
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="sk-wrong").models.list()
