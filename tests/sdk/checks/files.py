"""Files, through the client."""

import io
import tempfile
from pathlib import Path

import openai

from tests.sdk.checks.site import Site, equal, refused

CONTENT = b'{"custom_id": "1"}\n'


def from_a_path(site: Site) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "in.jsonl"
        path.write_bytes(CONTENT)
        file = site.client.files.create(file=path, purpose="batch")
    equal((file.filename, file.bytes, file.purpose), ("in.jsonl", len(CONTENT), "batch"))
    equal((file.object, file.status), ("file", "processed"))
    equal(site.client.files.content(file.id).read(), CONTENT)


def from_an_open_file(site: Site) -> None:
    source = io.BytesIO(CONTENT)
    source.name = "opened.jsonl"
    equal(site.client.files.create(file=source, purpose="batch").filename, "opened.jsonl")


def from_a_tuple_with_a_type(site: Site) -> None:
    source = ("größe 数.jsonl", CONTENT, "application/jsonl")
    equal(site.client.files.create(file=source, purpose="user_data").filename, source[0])


def with_an_expiry(site: Site) -> None:
    file = site.client.files.create(
        file=CONTENT,
        purpose="batch",
        extra_body={"expires_after": {"anchor": "created_at", "seconds": 7200}},
    )
    equal((file.expires_at or 0) - file.created_at, 7200)


def retrieved_as_created(site: Site) -> None:
    created = site.client.files.create(file=CONTENT, purpose="batch")
    equal(site.client.files.retrieve(created.id), created)
    equal(site.client.files.wait_for_processing(created.id).status, "processed")


def content_through_every_method(site: Site) -> None:
    client = site.client
    file = client.files.create(file=CONTENT, purpose="batch")
    equal(client.files.content(file.id).text, CONTENT.decode())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "out.jsonl"
        client.files.content(file.id).write_to_file(path)
        equal(path.read_bytes(), CONTENT)
    with client.files.with_streaming_response.content(file.id) as streamed:
        equal(b"".join(streamed.iter_bytes()), CONTENT)


def deleted(site: Site) -> None:
    client = site.client
    file = client.files.create(file=CONTENT, purpose="batch")
    answer = client.files.delete(file.id)
    equal((answer.id, answer.object, answer.deleted), (file.id, "file", True))
    error = refused(openai.NotFoundError, lambda: client.files.retrieve(file.id))
    equal(error.code, "file_not_found")
    refused(openai.NotFoundError, lambda: client.files.content(file.id))
    refused(openai.NotFoundError, lambda: client.files.delete(file.id))


def listed_in_pages(site: Site) -> None:
    client = site.client
    ids = [client.files.create(file=b"{}", purpose="evals").id for _ in range(5)]
    listed = client.files.list(limit=2, order="asc", purpose="evals")
    equal(len(listed.data), 2)
    equal(listed.has_next_page(), True)
    equal([file.id for file in listed], ids)
    equal([file.id for file in client.files.list(purpose="evals")], ids[::-1])
    after = client.files.list(after=ids[1], order="asc", purpose="evals")
    equal([file.id for file in after], ids[2:])


async def through_the_async_client(site: Site) -> None:
    async with site.async_client as client:
        file = await client.files.create(file=CONTENT, purpose="batch")
        equal((await client.files.content(file.id)).read(), CONTENT)
        listed = [one.id async for one in client.files.list(limit=2)]
        equal(file.id in listed, True)
        equal((await client.files.delete(file.id)).deleted, True)
