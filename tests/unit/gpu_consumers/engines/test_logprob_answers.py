"""Goal: log probabilities are encoded in small pieces, to the bytes that one piece would have."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter

from gpu_consumers.engines.vllm.logprob_answers import (
    VALUES_AT_ONCE,
    AnswerLogprobs,
    AnswerTooLargeError,
    defer_creation,
    defer_outputs,
    deferred_logprobs,
)

Position = dict[int, float]
CANDIDATES = 21


class ChatLogprobs(BaseModel):
    content: list[dict[str, Any]] | None = None


class CompletionLogprobs(BaseModel):
    text_offset: list[int] = []
    tokens: list[str] = []
    top_logprobs: list[Position | None] = []


class Choice(BaseModel):
    index: int
    logprobs: ChatLogprobs | CompletionLogprobs | None = None
    finish_reason: str = "length"


class CompletionChoice(Choice):
    prompt_logprobs: list[Position | None] | None = None
    stop_reason: str | None = None


class Completion(BaseModel):
    choices: list[CompletionChoice]
    model: str = "m"


class Chat(BaseModel):
    choices: list[Choice]
    model: str = "m"
    prompt_logprobs: list[Position | None] | None = None
    metrics: None = None


POSITIONS: TypeAdapter[Any] = TypeAdapter(list[Position | None])


def position(seed: int) -> Position:
    return {seed + one: -one / 7 for one in range(CANDIDATES)}


class Engine:
    """Generates one output for each prompt, like vLLM's engine."""

    def __init__(self, prompts: int, answers: int, tokens: int) -> None:
        self.prompts, self.answers, self.tokens = prompts, answers, tokens

    async def generate(self, request_id: str, prompt: int) -> AsyncGenerator[Any, None]:
        outputs = [
            SimpleNamespace(
                token_ids=[*range(100 * answer, 100 * answer + self.tokens)],
                logprobs=[position(100 * answer + token) for token in range(self.tokens)],
            )
            for answer in range(self.answers)
        ]
        yield SimpleNamespace(
            request_id=request_id,
            prompt_logprobs=[None, *(position(7 * prompt + one) for one in range(30))],
            outputs=outputs,
        )


class Serving:
    """Builds responses from all positions at once, like vLLM."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.sizes: list[int] = []
        """Candidates of each call that built log probabilities."""

    def create_chat(self, token_ids: Sequence[int], top_logprobs: Any, top: int) -> ChatLogprobs:
        self.sizes.append(sum(map(len, top_logprobs)))
        pairs = zip(token_ids, top_logprobs, strict=True)
        return ChatLogprobs(content=[{"token": one, "top": {**found}} for one, found in pairs])

    def create_completion(
        self, token_ids: Sequence[int], top_logprobs: Any, top: int, initial_text_offset: int = 0
    ) -> CompletionLogprobs:
        self.sizes.append(sum(len(one or ()) for one in top_logprobs))
        built, offset = CompletionLogprobs(), initial_text_offset
        for token, found in zip(token_ids, top_logprobs, strict=True):
            built.tokens.append(str(token))
            built.text_offset.append(offset)
            built.top_logprobs.append(found)
            offset += len(str(token))
        return built

    async def chat(self) -> Chat:
        async for output in self.engine.generate("chatcmpl-a-7", 0):
            choices = [
                Choice(index=index, logprobs=self.create_chat(one.token_ids, one.logprobs, top=20))
                for index, one in enumerate(output.outputs)
            ]
            return Chat(choices=choices, prompt_logprobs=output.prompt_logprobs)
        raise AssertionError

    async def echo(self) -> Completion:
        choices: list[CompletionChoice] = []
        for prompt in range(self.engine.prompts):
            async for output in self.engine.generate(f"cmpl-a-{prompt}", prompt):
                for one in output.outputs:
                    logprobs = self.create_completion(
                        [*range(31), *one.token_ids],
                        top_logprobs=[*output.prompt_logprobs, *one.logprobs],
                        top=20,
                    )
                    fields = {"logprobs": logprobs, "prompt_logprobs": output.prompt_logprobs}
                    choices.append(CompletionChoice(index=len(choices), **fields))
        return Completion(choices=choices)


def deferring(engine: Engine) -> Serving:
    serving = Serving(engine)
    defer_outputs(engine)
    defer_creation(serving, "create_chat")
    defer_creation(serving, "create_completion")
    return serving


def answer(lock: asyncio.Lock | None = None, bytes_max: int = 10**9) -> AnswerLogprobs:
    return AnswerLogprobs(POSITIONS.dump_json, lock or asyncio.Lock(), bytes_max)


async def in_pieces(respond: Callable[[], Any], logprobs: AnswerLogprobs) -> bytes:
    with deferred_logprobs(is_deferred=True) as deferred:
        response = await respond()
    await logprobs.add(response, deferred)
    return logprobs.insert_into(response.model_dump_json().encode())


SIZES = [(1, 1, 0), (1, 1, 1), (1, 3, 40), (3, 2, 25), (12, 1, 5)]


@pytest.mark.parametrize(("prompts", "answers", "tokens"), SIZES)
@pytest.mark.parametrize("name", ["chat", "echo"])
async def test_pieces_have_the_bytes_of_the_whole(
    name: str, prompts: int, answers: int, tokens: int
) -> None:
    whole = await getattr(Serving(Engine(prompts, answers, tokens)), name)()
    serving = deferring(Engine(prompts, answers, tokens))
    assert await in_pieces(getattr(serving, name), answer()) == whole.model_dump_json().encode()
    assert max(serving.sizes) < VALUES_AT_ONCE + CANDIDATES
    not_deferred = await getattr(serving, name)()
    assert not_deferred == whole


async def test_others_run_between_two_pieces_of_any_answer() -> None:
    """Four answers at once: the loop never encodes more than one piece before others run."""
    servings = [deferring(Engine(1, 2, 200)) for _ in range(4)]
    lock, most, has_ended = asyncio.Lock(), 0, False

    async def run_beside() -> None:
        nonlocal most
        before = 0
        while not has_ended:
            await asyncio.sleep(0)
            pieces = sum(len(serving.sizes) for serving in servings)
            most, before = max(most, pieces - before), pieces

    with deferred_logprobs(is_deferred=True) as first:
        response = await servings[0].chat()
    beside = asyncio.create_task(run_beside())
    others = [in_pieces(serving.chat, answer(lock)) for serving in servings[1:]]
    await asyncio.gather(answer(lock).add(response, first), *others)
    has_ended = True
    await beside
    placeholders = 2  # each response is built at once, of placeholders
    assert most <= 3 * placeholders + 2
    assert sum(len(serving.sizes) for serving in servings) > 4 * 2 * 200 * 21 // 300


async def test_a_large_answer_fails_before_all_of_it_is_encoded() -> None:
    serving = deferring(Engine(1, 100, 100))
    with pytest.raises(AnswerTooLargeError):
        await in_pieces(serving.chat, answer(bytes_max=50_000))
    assert 0 < sum(serving.sizes) * 10 < 50_000 + 10 * VALUES_AT_ONCE
    # The next answer is not blocked by the failed one.
    assert await in_pieces(deferring(Engine(1, 1, 1)).chat, answer(bytes_max=50_000))


async def test_the_bytes_of_a_prompt_count_once_for_each_choice() -> None:
    whole = len((await Serving(Engine(2, 3, 5)).echo()).model_dump_json())
    serving = deferring(Engine(2, 3, 5))
    await in_pieces(serving.echo, answer(bytes_max=whole + 2_000))
    with pytest.raises(AnswerTooLargeError):
        await in_pieces(serving.echo, answer(bytes_max=whole - 2_000))


async def test_waves_of_a_chat_share_the_log_probabilities_of_the_prompt() -> None:
    serving, logprobs = deferring(Engine(1, 1, 3)), answer()
    for _ in range(2):
        with deferred_logprobs(is_deferred=True) as deferred:
            response = await serving.chat()
        await logprobs.add(response, deferred)
    response.choices *= 2
    whole = await Serving(Engine(1, 1, 3)).chat()
    whole.choices *= 2
    assert logprobs.insert_into(response.model_dump_json().encode()) == (
        whole.model_dump_json().encode()
    )


async def test_an_answer_without_log_probabilities_stays_as_it_is() -> None:
    response = Chat(choices=[Choice(index=0)])
    with deferred_logprobs(is_deferred=True) as deferred:
        pass
    logprobs = answer()
    await logprobs.add(response, deferred)
    body = response.model_dump_json().encode()
    assert logprobs.insert_into(body) is body
