"""Sampling, log probabilities, structured output and tools, which need a real model."""

import json
from typing import Any, Literal

import openai
from pydantic import BaseModel

from tests.sdk.checks.site import MESSAGES, Site, equal

TOKENS_ENOUGH = 1500
"""Random weights fill a structure with white space where its grammar allows it."""

IGNORE_EOS = {"ignore_eos": True}
"""Random weights may end an answer at any token, which would change exact token counts."""


class Verdict(BaseModel):
    """A structure that random weights fill quickly: the grammar allows two words."""

    answer: Literal["yes", "no"]


class look_up(BaseModel):  # noqa: N801  the tool's name
    """Look something up."""

    colour: Literal["red", "blue"]


FORCED: dict[str, Any] = {
    "tools": [openai.pydantic_function_tool(look_up)],
    "tool_choice": {"type": "function", "function": {"name": "look_up"}},
    "max_tokens": TOKENS_ENOUGH,
}
"""Options of a call that must use the tool."""


def reproducible_with_a_seed(site: Site) -> None:
    answers = [site.chat(max_tokens=16, temperature=1, seed=seed) for seed in (7, 7, 8)]
    texts = [answer.choices[0].message.content for answer in answers]
    equal(texts[0], texts[1])
    equal(texts[0] == texts[2], False)


def streamed_text_equals_the_complete_one(site: Site) -> None:
    complete = site.chat(max_tokens=16, temperature=0)
    stream = site.chat(max_tokens=16, temperature=0, stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    equal(text, complete.choices[0].message.content)


def ended_at_a_stop_string(site: Site) -> None:
    def ask(**options: Any) -> Any:
        answer = site.chat(max_tokens=40, temperature=0, **options)
        return answer.choices[0]

    text = ask().message.content
    stop = text[len(text) // 2 :][:4]
    stopped = ask(stop=[stop])
    equal(stopped.finish_reason, "stop")
    equal(stopped.message.content, text.partition(stop)[0])


def with_log_probabilities(site: Site) -> None:
    answer = site.chat(max_tokens=3, logprobs=True, top_logprobs=2, extra_body=IGNORE_EOS)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    equal(len(logprobs.content), 3)
    equal([len(token.top_logprobs) >= 2 for token in logprobs.content], [True] * 3)
    equal(all(token.logprob <= 0 for token in logprobs.content), True)
    legacy = site.client.completions.create(
        model=site.chat_model, prompt="Once", max_tokens=3, logprobs=1, extra_body=IGNORE_EOS
    )
    found = legacy.choices[0].logprobs
    equal(found is not None and len(found.tokens or []), 3)


def streamed_with_log_probabilities(site: Site) -> None:
    stream = site.chat(max_tokens=3, logprobs=True, stream=True, extra_body=IGNORE_EOS)
    found = [
        token
        for chunk in stream
        for choice in chunk.choices
        if choice.logprobs
        for token in choice.logprobs.content or []
    ]
    equal(len(found), 3)


def parsed_into_a_type(site: Site) -> None:
    parsed = site.client.chat.completions.parse(
        model=site.chat_model, messages=MESSAGES, response_format=Verdict, max_tokens=TOKENS_ENOUGH
    )
    verdict = parsed.choices[0].message.parsed
    equal(isinstance(verdict, Verdict), True)


def parsed_from_a_stream(site: Site) -> None:
    with site.client.chat.completions.stream(
        model=site.chat_model, messages=MESSAGES, response_format=Verdict, max_tokens=TOKENS_ENOUGH
    ) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    equal(isinstance(final.choices[0].message.parsed, Verdict), True)


async def parsed_by_the_async_client(site: Site) -> None:
    async with site.async_client as client:
        parsed = await client.chat.completions.parse(
            model=site.chat_model,
            messages=MESSAGES,
            response_format=Verdict,
            max_tokens=TOKENS_ENOUGH,
        )
        equal(isinstance(parsed.choices[0].message.parsed, Verdict), True)


def forced_tool_call(site: Site) -> None:
    answer = site.chat(**FORCED)
    (call,) = answer.choices[0].message.tool_calls or []
    assert call.type == "function"
    equal((call.function.name, bool(call.id)), ("look_up", True))
    equal(json.loads(call.function.arguments)["colour"] in {"red", "blue"}, True)


def tool_call_parsed_into_a_type(site: Site) -> None:
    parsed = site.client.chat.completions.parse(model=site.chat_model, messages=MESSAGES, **FORCED)
    (call,) = parsed.choices[0].message.tool_calls or []
    equal(isinstance(call.function.parsed_arguments, look_up), True)


def streamed_tool_call(site: Site) -> None:
    stream = site.chat(**FORCED, stream=True)
    deltas = [
        call
        for chunk in stream
        for choice in chunk.choices
        for call in choice.delta.tool_calls or []
    ]
    equal({delta.index for delta in deltas}, {0})
    names = [delta.function.name for delta in deltas if delta.function and delta.function.name]
    equal(names, ["look_up"])
    arguments = "".join((d.function.arguments or "") for d in deltas if d.function)
    equal(json.loads(arguments)["colour"] in {"red", "blue"}, True)


def an_engine_field(site: Site) -> None:
    """A field that the client does not know and the engine applies."""
    answer = site.chat(max_tokens=12, extra_body={"min_tokens": 12, "ignore_eos": True, "top_k": 5})
    equal(answer.usage and answer.usage.completion_tokens, 12)
