"""Chat and legacy completions, on every engine."""

import openai
from openai.types.chat import ChatCompletionChunk

from tests.sdk.checks.site import MESSAGES, Site, equal, refused


def complete_answer(site: Site) -> None:
    answer = site.chat(max_tokens=8, temperature=0)
    equal((answer.object, len(answer.choices)), ("chat.completion", 1))
    choice = answer.choices[0]
    equal((choice.index, choice.finish_reason), (0, "length"))
    equal((choice.message.role, choice.message.refusal), ("assistant", None))
    equal(bool(choice.message.content), True)
    assert answer.usage is not None
    equal(answer.usage.completion_tokens, 8)
    equal(answer.usage.total_tokens, answer.usage.prompt_tokens + 8)
    equal(answer.model.endswith(site.chat_model), True)


def max_completion_tokens(site: Site) -> None:
    answer = site.chat(max_completion_tokens=5)
    equal(answer.usage and answer.usage.completion_tokens, 5)


def content_parts(site: Site) -> None:
    messages = [
        {"role": "system", "content": "Say “größe 数”."},
        {"role": "user", "content": [{"type": "text", "text": "Why?"}]},
    ]
    answer = site.chat(messages=messages, max_tokens=4)
    equal(answer.usage and answer.usage.completion_tokens, 4)


def several_choices(site: Site) -> None:
    answer = site.chat(n=2, max_tokens=4)
    equal([choice.index for choice in answer.choices], [0, 1])
    equal(answer.usage and answer.usage.completion_tokens, 8)


def streamed(site: Site) -> None:
    stream = site.chat(max_tokens=8, temperature=0, stream=True)
    chunks = list(stream)
    equal({chunk.object for chunk in chunks}, {"chat.completion.chunk"})
    equal(len({chunk.id for chunk in chunks}), 1)
    equal([chunk for chunk in chunks if not chunk.choices or chunk.usage], [])
    equal(chunks[0].choices[0].delta.role, "assistant")
    reasons = [chunk.choices[0].finish_reason for chunk in chunks]
    equal((set(reasons[:-1]), reasons[-1]), ({None}, "length"))
    equal(bool(_text_of(chunks)), True)
    answer = site.chat(max_tokens=1)
    equal({chunk.system_fingerprint for chunk in chunks}, {answer.system_fingerprint})
    equal((answer.system_fingerprint or "").rpartition("@")[0], site.chat_model)


def streamed_with_usage(site: Site) -> None:
    stream = site.chat(max_tokens=8, stream=True, stream_options={"include_usage": True})
    *chunks, last = stream
    equal([chunk.usage for chunk in chunks], [None] * len(chunks))
    equal(["usage" in chunk.model_fields_set for chunk in chunks], [True] * len(chunks))
    equal(last.choices, [])
    assert last.usage is not None
    equal(last.usage.completion_tokens, 8)
    equal(last.usage.total_tokens, last.usage.prompt_tokens + 8)


def streamed_in_several_choices(site: Site) -> None:
    stream = site.chat(n=2, max_tokens=4, stream=True)
    ended = [choice.index for chunk in stream for choice in chunk.choices if choice.finish_reason]
    equal(sorted(ended), [0, 1])


def streamed_in_a_with_block(site: Site) -> None:
    """Leaving the block early closes the response and leaves the connection usable."""
    client = site.client
    for _ in range(3):
        with client.chat.completions.create(
            model=site.chat_model, messages=MESSAGES, max_tokens=500, stream=True
        ) as stream:
            equal(next(stream).choices[0].delta.role, "assistant")
    equal(client.models.retrieve(site.chat_model).id, site.chat_model)


def streamed_with_the_helper(site: Site) -> None:
    with site.client.chat.completions.stream(
        model=site.chat_model, messages=MESSAGES, max_tokens=8
    ) as stream:
        kinds = [event.type for event in stream]
        final = stream.current_completion_snapshot  # the final one raises on an end by length
    equal(kinds.count("content.done"), 1)
    equal(final.choices[0].finish_reason, "length")
    equal(bool(final.choices[0].message.content), True)


def streamed_raw(site: Site) -> None:
    raw = site.raw_chat(max_tokens=4, stream=True)
    equal(raw.headers["content-type"].partition(";")[0], "text/event-stream")
    equal(raw.headers["cache-control"], "no-cache")
    equal(raw.headers["x-accel-buffering"], "no")
    equal(bool(raw.headers["x-request-id"]), True)
    equal(bool(_text_of(list(raw.parse()))), True)


def streamed_lines(site: Site) -> None:
    """The wire format: events with one line of data, then `[DONE]`."""
    with site.client.chat.completions.with_streaming_response.create(
        model=site.chat_model, messages=MESSAGES, max_tokens=4, stream=True
    ) as raw:
        lines = [line for line in raw.iter_lines() if line and not line.startswith(":")]
    equal({line[:6] for line in lines}, {"data: "})
    equal(lines[-1], "data: [DONE]")


def refused_by_the_engine(site: Site) -> None:
    for stream in (False, True):
        error = refused(openai.BadRequestError, site.chat, messages=[], stream=stream)
        equal(sorted(error.body), ["code", "message", "param", "type"])


def unknown_model(site: Site) -> None:
    for stream in (False, True):
        error = refused(openai.NotFoundError, site.chat, model="nope", stream=stream)
        equal(error.code, "model_not_found")


def legacy(site: Site) -> None:
    answer = site.client.completions.create(
        model=site.chat_model, prompt=["Once", "Twice"], max_tokens=4
    )
    equal(answer.object, "text_completion")
    equal([choice.index for choice in answer.choices], [0, 1])
    equal(answer.usage and answer.usage.completion_tokens, 8)


def legacy_streamed(site: Site) -> None:
    chunks = list(
        site.client.completions.create(
            model=site.chat_model,
            prompt="Once",
            max_tokens=4,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    equal(chunks[-1].choices, [])
    equal(chunks[-1].usage and chunks[-1].usage.completion_tokens, 4)
    equal(chunks[-2].choices[0].finish_reason, "length")


async def through_the_async_client(site: Site) -> None:
    async with site.async_client as client:
        answer = await client.chat.completions.create(
            model=site.chat_model, messages=MESSAGES, max_tokens=4
        )
        equal(answer.usage and answer.usage.completion_tokens, 4)
        stream = await client.chat.completions.create(
            model=site.chat_model, messages=MESSAGES, max_tokens=4, stream=True
        )
        equal(bool(_text_of([chunk async for chunk in stream])), True)


async def abandoned_by_the_async_client(site: Site) -> None:
    async with site.async_client as client:
        async with await client.chat.completions.create(
            model=site.chat_model, messages=MESSAGES, max_tokens=500, stream=True
        ) as stream:
            async for chunk in stream:
                equal(chunk.choices[0].delta.role, "assistant")
                break
        equal((await client.models.retrieve(site.chat_model)).id, site.chat_model)


def _text_of(chunks: list[ChatCompletionChunk]) -> str:
    """Return the content of the first choice."""
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
