"""Batches for checks that need one."""

import json
from typing import Any

from openai.types import Batch

from tests.sdk.checks.site import Site


def created_batch(site: Site, count: int, **options: Any) -> Batch:
    """Return a new batch of `count` chats."""
    return site.client.batches.create(
        input_file_id=batch_input(site, count),
        endpoint="/v1/chat/completions",
        completion_window="24h",
        **options,
    )


def batch_input(site: Site, count: int) -> str:
    """Return the id of a new input file of `count` chats."""
    body = {"model": site.chat_model, "messages": [{"role": "user", "content": "hello"}]}
    lines = [
        {"custom_id": f"item-{n}", "method": "POST", "url": "/v1/chat/completions", "body": body}
        for n in range(count)
    ]
    content = "".join(json.dumps(line) + "\n" for line in lines).encode()
    return site.client.files.create(file=("in.jsonl", content), purpose="batch").id
