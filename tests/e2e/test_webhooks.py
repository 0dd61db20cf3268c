"""Goal: a user of a running stack is told of a job, also when the role that tells is killed."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI

from results.webhooks.events.messages import EVENT_TYPES
from tests.integration.webhooks.receivers import Receiver, ok, receiving
from tests.support.job_checks import ENDPOINT, chat_line, ended, watch
from tests.support.stacks import Stack, await_true, running_stack

ITEM_COUNT, FAILED_COUNT = 2000, 5


@pytest.fixture(scope="module")
def telling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stack that may reach receivers of this machine."""
    options = ("--simulated-latency-ms", "20", "--allow-private-webhooks")
    with running_stack(tmp_path_factory.mktemp("stack"), *options) as running:
        yield running


@pytest.mark.timeout(400)
def test_a_job_tells_its_endpoint_and_its_callback(telling: Stack) -> None:
    client = telling.client
    with receiving(ok) as receiver, receiving(ok) as called:
        endpoint: Any = client.webhooks.create(
            name="all",
            url=receiver.url,
            event_types=list(EVENT_TYPES),  # type: ignore[arg-type]
        )
        secret = client.post("/webhook_callback_secret/rotate", body={}, cast_to=dict[str, Any])[
            "signing_secret"
        ]
        job_id = submit_with_callback(client, telling.model, called.url)
        watch(
            client,
            job_id,
            lambda job: (job.request_counts.completed if job.request_counts else 0) > 0,
        )
        telling.kill("webhooks")
        job = watch(client, job_id, ended)
        assert job.status == "completed", job
        await_true(lambda: "batch.completed" in types_of(receiver), "news of the end", 60)
        await_true(lambda: len(called.requests) > 0, "the callback", 60)
        await_true(lambda: failed_of(receiver) == FAILED_COUNT, "news of failed items", 60)
        await_true(lambda: len(marks_of(receiver)) >= 3, "news of the progress", 90)
        tested = client.webhooks.test(endpoint.id, event_type="batch.failed")
        assert (tested.status_code, tested.success) == (200, True)

    events = {body["id"]: body for body in bodies_of(receiver)}.values()
    assert marks_of(receiver) == [25, 50, 75]
    ends = [e for e in events if e["type"] == "batch.completed"]
    assert [e["data"] for e in ends] == [{"id": job_id}]
    for request in receiver.requests:
        client.webhooks.unwrap(request.body, request.headers, secret=endpoint.signing_secret)
    (event,) = {
        client.webhooks.unwrap(r.body, r.headers, secret=secret).id for r in called.requests
    }
    assert event in {e["id"] for e in ends}  # one message for all who hear of it
    logs = "".join(path.read_text() for path in (telling.data / "logs").glob("*"))
    key = (telling.data / "webhook-key").read_text()
    assert all(text not in logs for text in (endpoint.signing_secret, secret, key, "a=b"))
    assert "webhooks may reach private addresses" in logs


def submit_with_callback(client: OpenAI, model: str, url: str) -> str:
    lines = [json.loads(chat_line(number, model)) for number in range(ITEM_COUNT)]
    for line in lines[:FAILED_COUNT]:
        line["body"]["stream"] = True  # which fails its item
    content = "".join(f"{json.dumps(line)}\n" for line in lines).encode()
    file = client.files.create(file=("input.jsonl", content), purpose="batch")
    job = client.batches.create(
        input_file_id=file.id,
        endpoint=ENDPOINT,
        completion_window="24h",
        extra_body={"callback_url": url},
    )
    return job.id


def bodies_of(receiver: Receiver) -> list[dict[str, Any]]:
    return [json.loads(request.body) for request in list(receiver.requests)]


def types_of(receiver: Receiver) -> list[str]:
    return [body["type"] for body in bodies_of(receiver)]


def marks_of(receiver: Receiver) -> list[int]:
    """The percents that were told of, repeats of a message left out."""
    told = {b["id"]: b for b in bodies_of(receiver) if b["type"] == "batch.progress"}
    return sorted(body["data"]["millrace"]["percent"] for body in told.values())


def failed_of(receiver: Receiver) -> int:
    """How many failed items were told of, repeats of a message left out."""
    told = {b["id"]: b for b in bodies_of(receiver) if b["type"] == "item.failed"}
    return sum(body["data"]["millrace"]["failed_count"] for body in told.values())
