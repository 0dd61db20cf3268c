"""Goal: a running stack delivers a job's webhooks, also when the webhook role is killed."""

import json
from typing import Any

import pytest
from openai import OpenAI

from results.webhooks.events.messages import EVENT_TYPES
from tests.integration.webhooks.receivers import Receiver, ok, receiving
from tests.support.job_checks import chat_line, create, ended, upload, watch
from tests.support.stacks import Stack
from tests.support.until import until

ITEM_COUNT, FAILED_COUNT = 2000, 5


@pytest.mark.timeout(400)
def test_a_job_notifies_its_endpoint_and_its_callback(stack: Stack) -> None:
    client = stack.client
    with receiving(ok) as receiver, receiving(ok) as called:
        endpoint: Any = client.webhooks.create(
            name="all",
            url=receiver.url,
            event_types=list(EVENT_TYPES),  # type: ignore[arg-type]
        )
        secret = client.post("/webhook_callback_secret/rotate", body={}, cast_to=dict[str, Any])[
            "signing_secret"
        ]
        job_id = submit_with_callback(client, stack.model, called.url)
        watch(
            client,
            job_id,
            lambda job: (job.request_counts.completed if job.request_counts else 0) > 0,
        )
        stack.kill("webhooks")
        job = watch(client, job_id, ended)
        assert job.status == "completed", job
        until(lambda: "batch.completed" in types_of(receiver), "the event of the end", 60)
        until(lambda: len(called.requests) > 0, "the callback", 60)
        until(lambda: failed_of(receiver) == FAILED_COUNT, "the events of failed items", 60)
        until(lambda: len(marks_of(receiver)) >= 3, "the progress events", 90)
        tested = client.webhooks.test(endpoint.id, event_type="batch.failed")
        assert (tested.status_code, tested.success) == (200, True)
        client.webhooks.delete(endpoint.id)

    events = {body["id"]: body for body in bodies_of(receiver)}.values()
    assert marks_of(receiver) == [25, 50, 75]
    ends = [e for e in events if e["type"] == "batch.completed"]
    assert [e["data"] for e in ends] == [{"id": job_id}]
    for request in receiver.requests:
        client.webhooks.unwrap(request.body, request.headers, secret=endpoint.signing_secret)
    (event,) = {
        client.webhooks.unwrap(r.body, r.headers, secret=secret).id for r in called.requests
    }
    assert event in {e["id"] for e in ends}  # one message for all receivers
    logs = "".join(path.read_text() for path in (stack.data / "logs").glob("*"))
    key = (stack.data / "webhook-key").read_text()
    assert all(text not in logs for text in (endpoint.signing_secret, secret, key, "a=b"))
    assert "webhooks may reach private addresses" in logs


def submit_with_callback(client: OpenAI, model: str, url: str) -> str:
    lines = [json.loads(chat_line(number, model)) for number in range(ITEM_COUNT)]
    for line in lines[:FAILED_COUNT]:
        line["body"]["stream"] = True  # fails the item
    content = "".join(f"{json.dumps(line)}\n" for line in lines).encode()
    return create(client, upload(client, content), callback_url=url).id


def bodies_of(receiver: Receiver) -> list[dict[str, Any]]:
    return [json.loads(request.body) for request in list(receiver.requests)]


def types_of(receiver: Receiver) -> list[str]:
    return [body["type"] for body in bodies_of(receiver)]


def marks_of(receiver: Receiver) -> list[int]:
    """The distinct percentages of progress events."""
    distinct = {b["id"]: b for b in bodies_of(receiver) if b["type"] == "batch.progress"}
    return sorted(body["data"]["millrace"]["percent"] for body in distinct.values())


def failed_of(receiver: Receiver) -> int:
    """The number of failed items in distinct events."""
    distinct = {b["id"]: b for b in bodies_of(receiver) if b["type"] == "item.failed"}
    return sum(body["data"]["millrace"]["failed_count"] for body in distinct.values())
