"""What only a real model can show: sampling, log probabilities, structure, tools."""

import json
from typing import Any, Literal

import openai
from pydantic import BaseModel

from tests.sdk.checks.chat import ASKED
from tests.sdk.checks.site import Site, equal

TOKENS_ENOUGH = 1500
"""Random weights fill a structure with white space where its grammar lets them."""

TO_THE_END = {"ignore_eos": True}
"""They end an answer at any token, too, which is seldom and wrong where tokens are counted."""


class Verdict(BaseModel):
    """A structure that even random weights fill soon: the grammar leaves two words."""

    answer: Literal["yes", "no"]


class look_up(BaseModel):  # noqa: N801  its name is the tool's
    """Look something up."""

    colour: Literal["red", "blue"]


def the_same_for_the_same_seed(site: Site) -> None:
    texts = [_sampled(site, seed) for seed in (7, 7, 8)]
    equal(texts[0], texts[1])
    equal(texts[0] == texts[2], False)


def streamed_as_it_is_whole(site: Site) -> None:
    whole = site.client.chat.completions.create(
        model=site.chat_model, messages=ASKED, max_tokens=16, temperature=0
    )
    stream = site.client.chat.completions.create(
        model=site.chat_model, messages=ASKED, max_tokens=16, temperature=0, stream=True
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    equal(text, whole.choices[0].message.content)


def cut_at_a_stop(site: Site) -> None:
    def ask(**options: Any) -> Any:
        answer = site.client.chat.completions.create(
            model=site.chat_model, messages=ASKED, max_tokens=40, temperature=0, **options
        )
        return answer.choices[0]

    text = ask().message.content
    stop = text[len(text) // 2 :][:4]
    stopped = ask(stop=[stop])
    equal(stopped.finish_reason, "stop")
    equal(stopped.message.content, text.partition(stop)[0])


def with_log_probabilities(site: Site) -> None:
    answer = site.client.chat.completions.create(
        model=site.chat_model,
        messages=ASKED,
        max_tokens=3,
        logprobs=True,
        top_logprobs=2,
        extra_body=TO_THE_END,
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    equal(len(logprobs.content), 3)
    equal([len(token.top_logprobs) >= 2 for token in logprobs.content], [True] * 3)
    equal(all(token.logprob <= 0 for token in logprobs.content), True)
    legacy = site.client.completions.create(
        model=site.chat_model, prompt="Once", max_tokens=3, logprobs=1, extra_body=TO_THE_END
    )
    found = legacy.choices[0].logprobs
    equal(found is not None and len(found.tokens or []), 3)


def streamed_with_log_probabilities(site: Site) -> None:
    stream = site.client.chat.completions.create(
        model=site.chat_model,
        messages=ASKED,
        max_tokens=3,
        logprobs=True,
        stream=True,
        extra_body=TO_THE_END,
    )
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
        model=site.chat_model, messages=ASKED, response_format=Verdict, max_tokens=TOKENS_ENOUGH
    )
    verdict = parsed.choices[0].message.parsed
    equal(isinstance(verdict, Verdict), True)


def parsed_with_the_older_name(site: Site) -> None:
    parsed = site.client.beta.chat.completions.parse(
        model=site.chat_model, messages=ASKED, response_format=Verdict, max_tokens=TOKENS_ENOUGH
    )
    equal(isinstance(parsed.choices[0].message.parsed, Verdict), True)


def parsed_from_a_stream(site: Site) -> None:
    with site.client.chat.completions.stream(
        model=site.chat_model, messages=ASKED, response_format=Verdict, max_tokens=TOKENS_ENOUGH
    ) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    equal(isinstance(final.choices[0].message.parsed, Verdict), True)


async def parsed_by_a_coroutine(site: Site) -> None:
    async with site.async_client as client:
        parsed = await client.chat.completions.parse(
            model=site.chat_model, messages=ASKED, response_format=Verdict, max_tokens=TOKENS_ENOUGH
        )
        equal(isinstance(parsed.choices[0].message.parsed, Verdict), True)


def the_tool_that_is_asked_for(site: Site) -> None:
    answer = site.client.chat.completions.create(
        model=site.chat_model,
        messages=ASKED,
        tools=[openai.pydantic_function_tool(look_up)],
        tool_choice={"type": "function", "function": {"name": "look_up"}},
        max_tokens=TOKENS_ENOUGH,
    )
    (call,) = answer.choices[0].message.tool_calls or []
    assert call.type == "function"
    equal((call.function.name, bool(call.id)), ("look_up", True))
    equal(json.loads(call.function.arguments)["colour"] in {"red", "blue"}, True)


def a_tool_parsed_into_a_type(site: Site) -> None:
    parsed = site.client.chat.completions.parse(
        model=site.chat_model,
        messages=ASKED,
        tools=[openai.pydantic_function_tool(look_up)],
        tool_choice={"type": "function", "function": {"name": "look_up"}},
        max_tokens=TOKENS_ENOUGH,
    )
    (call,) = parsed.choices[0].message.tool_calls or []
    equal(isinstance(call.function.parsed_arguments, look_up), True)


def a_tool_streamed(site: Site) -> None:
    stream = site.client.chat.completions.create(
        model=site.chat_model,
        messages=ASKED,
        tools=[openai.pydantic_function_tool(look_up)],
        tool_choice={"type": "function", "function": {"name": "look_up"}},
        max_tokens=TOKENS_ENOUGH,
        stream=True,
    )
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


def a_field_of_the_engines_own(site: Site) -> None:
    """Unknown to the client; the engine obeys it."""
    answer = site.client.chat.completions.create(
        model=site.chat_model,
        messages=ASKED,
        max_tokens=12,
        extra_body={"min_tokens": 12, "ignore_eos": True, "top_k": 5},
    )
    equal(answer.usage and answer.usage.completion_tokens, 12)


def _sampled(site: Site, seed: int) -> str | None:
    answer = site.client.chat.completions.create(
        model=site.chat_model, messages=ASKED, max_tokens=16, temperature=1, seed=seed
    )
    return answer.choices[0].message.content
