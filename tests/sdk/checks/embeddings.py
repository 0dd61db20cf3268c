"""Embeddings, on every engine."""

import base64
import math
import struct
from typing import cast

import openai

from tests.sdk.checks.site import Site, equal, refused

TEXTS = ["A man is eating food.", "Someone eats a meal.", "größe 数"]


def with_the_default_format(site: Site) -> None:
    """The client requests base64 by default and decodes it."""
    answer = site.client.embeddings.create(model=site.embedding_model, input=TEXTS)
    equal((answer.object, [item.index for item in answer.data]), ("list", [0, 1, 2]))
    equal({item.object for item in answer.data}, {"embedding"})
    for item in answer.data:
        equal(isinstance(item.embedding, list), True)
        equal(math.isclose(math.hypot(*item.embedding), 1, rel_tol=0.01), True)
    equal(answer.usage.total_tokens, answer.usage.prompt_tokens)
    equal(answer.usage.prompt_tokens > 0, True)


def equal_in_both_formats(site: Site) -> None:
    client, model = site.client, site.embedding_model
    packed = client.embeddings.create(model=model, input=TEXTS[0], encoding_format="base64")
    floats = client.embeddings.create(model=model, input=TEXTS[0], encoding_format="float")
    # A string for base64, although the client's type is a list.
    content = base64.b64decode(cast("str", packed.data[0].embedding))
    decoded = struct.unpack(f"<{len(content) // 4}f", content)
    expected = floats.data[0].embedding
    equal(len(decoded), len(expected))
    equal(max(abs(a - b) for a, b in zip(decoded, expected, strict=True)) < 1e-2, True)


def of_tokens(site: Site) -> None:
    answer = site.client.embeddings.create(
        model=site.embedding_model, input=[[101, 2023, 102], [101, 2003, 102]]
    )
    equal(len(answer.data), 2)


def refused_by_the_engine(site: Site) -> None:
    refused(
        openai.BadRequestError,
        lambda: site.client.embeddings.create(model=site.embedding_model, input=[]),
    )


async def through_the_async_client(site: Site) -> None:
    async with site.async_client as client:
        answer = await client.embeddings.create(model=site.embedding_model, input=TEXTS[0])
        equal(len(answer.data), 1)
