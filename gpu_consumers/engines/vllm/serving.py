"""vLLM's serving objects as a table of routes, and their responses as answers."""

import asyncio
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Self

import msgspec
from pydantic import TypeAdapter, ValidationError
from vllm.entrypoints.generate.base.protocol import StreamOptions as VllmStreamOptions
from vllm.entrypoints.generate.base.serving import clamp_prompt_logprobs
from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.openai.completion.protocol import (
    CompletionResponseChoice,
)
from vllm.entrypoints.serve import create_error_response
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError as VllmEngineDeadError
from vllm.v1.metrics.loggers import PrometheusStatLogger

from core.bodies.body_limits import has_few_values
from core.bodies.own_fields import STREAMED_ENDPOINTS
from core.errors import EngineDeadError, EngineOutOfMemoryError
from gpu_consumers.engines.engine import EmitEvent, EngineAnswer, UsageMeter
from gpu_consumers.engines.engine_failures import (
    failure_answer,
    invalid_body_answer,
    is_out_of_memory,
    prompt_count,
    sequence_limit_answer,
)
from gpu_consumers.engines.engine_slots import scheduler_priority, square_root_headroom
from gpu_consumers.engines.error_answers import (
    item_timeout_answer,
    stream_unsupported_answer,
    unknown_endpoint_answer,
)
from gpu_consumers.engines.item_timeout import ItemTimeout
from gpu_consumers.engines.model_names import WriteModel, model_writer, other_model
from gpu_consumers.engines.settings import EngineSettings
from gpu_consumers.engines.stream_events import StreamEvents, StreamOptions
from gpu_consumers.engines.vllm.bulk_window import EngineLoad
from gpu_consumers.engines.vllm.engine_arguments import ModelToLoad
from gpu_consumers.engines.vllm.engine_config import resolve_engine_config
from gpu_consumers.engines.vllm.engine_hash import engine_hash
from gpu_consumers.engines.vllm.grammar_limits import costly_grammar_answer
from gpu_consumers.engines.vllm.input_slices import (
    InputSlices,
    SlicedAnswer,
    SliceLimits,
    SlicePace,
    too_large_answer,
    with_short_input,
)
from gpu_consumers.engines.vllm.load_reports import LoadReports
from gpu_consumers.engines.vllm.logprob_answers import (
    AnswerLogprobs,
    AnswerTooLargeError,
    defer_creation,
    defer_outputs,
    deferred_logprobs,
)
from gpu_consumers.engines.vllm.logprob_arrays import keep_logprobs_as_arrays
from gpu_consumers.engines.vllm.routes import Route, routes_of_model
from gpu_consumers.engines.vllm.schema_references import endless_reference_answer
from gpu_consumers.engines.vllm.sequence_counts import counted_sequences, observe_sequences
from gpu_consumers.engines.vllm.sequence_waves import (
    WaveLimits,
    join_responses,
    sequence_waves,
    wave_sequences,
)
from gpu_consumers.engines.vllm.sleep_mode import SleepMode
from gpu_consumers.engines.vllm.vllm_adapters import VllmAdapters
from gpu_consumers.engines.vllm.vllm_answers import (
    answer_from_response,
    answer_of_body,
)
from gpu_consumers.engines.vllm.weight_version import WeightVersionError, WeightVersionGuard

_POSITIONS: Any = CompletionResponseChoice.model_fields["prompt_logprobs"].annotation
_PROMPT_LOGPROBS: TypeAdapter[Any] = TypeAdapter(_POSITIONS)
_SHORTEN = "Ask for fewer answers, tokens or log probabilities."


class VllmServing:
    """A started engine and the routes that its model supports."""

    def __init__(
        self,
        engine: AsyncLLM,
        routes: dict[str, Route],
        settings: EngineSettings,
        guard: WeightVersionGuard | None,
        *,
        adapters: VllmAdapters,
        engine_hash: str,
    ) -> None:
        self.adapters, self.engine_hash = adapters, engine_hash
        self._guard = guard
        self._model = settings.model_name
        self._sequences_max = settings.vllm_body_sequences_max
        self.steps_sequences_max: int = engine.vllm_config.scheduler_config.max_num_seqs
        """Sequences in one step of the engine."""
        seats = self.steps_sequences_max
        # No more than run at once: the call of another tenant waits for one slice at most.
        inputs_max = min(self._sequences_max, seats)
        self._slice_limits = SliceLimits(inputs_max, engine.model_config.max_model_len)
        step_tokens = engine.vllm_config.scheduler_config.max_num_batched_tokens
        self._sequences_at_once = seats - square_root_headroom(seats)
        self._wave_limits = WaveLimits(self._sequences_at_once, engine.model_config.max_model_len)
        self._encoding = asyncio.Lock()  # one answer at a time encodes log probabilities
        self._small_sequences_max = max(1, seats // 16)
        self._call_pace = SlicePace(step_tokens)
        self._item_pace = SlicePace(step_tokens, is_constant=True)
        self._answer_bytes_max = settings.answer_bytes_max
        self._accepts_any_grammar = settings.vllm_unbounded_grammars
        self._engine = engine
        observe_sequences(engine.output_processor)
        self.sleep_mode = SleepMode(engine)
        self._routes = routes
        self._item_timeout_s = settings.item_timeout_s
        # The engine core answers `is_paused` between two of its steps.
        self._timeout = ItemTimeout(settings.item_timeout_s, engine.is_paused)

    @classmethod
    async def start(
        cls,
        settings: EngineSettings,
        model: ModelToLoad,
        on_load: Callable[[EngineLoad], None],
        on_mismatch: Callable[[WeightVersionError], None],
    ) -> Self:
        """Check the configuration, start the engine core and load the model.

        On the calling thread. `on_load` is called on the event loop with the load of the engine,
        while it runs; `on_mismatch` if an output is of other weights than those that were loaded.

        Raises SettingsError before anything is loaded, EngineOptionsRefusedError among them, and
        EngineDeadError with vLLM's message, which holds no client's data.
        """
        keep_logprobs_as_arrays()
        resolved = resolve_engine_config(settings, model)
        digest = engine_hash(resolved)
        state = SimpleNamespace()
        try:
            engine = AsyncLLM.from_vllm_config(
                resolved.config,
                stat_loggers=[lambda _config, _engine_index: LoadReports(on_load)],
                disable_log_stats=True,
            )
            _keep_only_own_statistics(engine)
            tasks = await engine.get_supported_tasks()
            await init_app_state(engine, state, resolved.parsed, tasks)
            _defer_logprobs(engine, state)
            guard = None
            if model.version:
                await engine.update_weight_version(model.version)
                guard = WeightVersionGuard(model.version, on_mismatch)
                guard.watch(engine.output_processor)
        except Exception as failure:  # vLLM documents none; without an engine the process ends
            raise EngineDeadError(f"vLLM does not start: {failure}") from failure
        return cls(
            engine,
            routes_of_model(state, tasks),
            settings,
            guard,
            adapters=VllmAdapters(engine, state.openai_serving_models),
            engine_hash=digest,
        )

    def shut_down(self) -> None:
        """End the engine core."""
        self._engine.shutdown()

    @property
    def unfinished(self) -> int:
        """Sequences in vLLM, including those of cancelled calls until they are aborted."""
        return int(self._engine.get_num_unfinished_requests())

    async def run(
        self,
        endpoint: str,
        body: bytes,
        emit: EmitEvent | None,
        meter: UsageMeter | None,
        *,
        is_bulk: bool,
        adapter: str = "",
    ) -> EngineAnswer:
        """Run one bulk item, or one online call ahead of bulk items; a refusal is its answer.

        `adapter` must be loaded. Raises EngineDeadError, EngineStalledError among them, for an item
        EngineOutOfMemoryError when the engine lives on, and WeightVersionError, with which no item
        of this engine counts as tried.
        """
        asked = other_model(body, adapter or self._model)
        write_model = None if asked is None else model_writer(asked)
        if write_model is not None and emit is not None:
            emit = _with_model(emit, write_model)
        try:
            answer = await self._run(
                endpoint, body, emit, meter, is_bulk=is_bulk, model=adapter or self._model
            )
        except Exception:
            if self._guard is not None:
                self._guard.raise_failure()
            raise
        if self._guard is not None:
            self._guard.raise_failure()
        if write_model is None or answer.is_error or not answer.body:
            return answer
        return msgspec.structs.replace(answer, body=write_model(answer.body))

    async def _run(
        self,
        endpoint: str,
        body: bytes,
        emit: EmitEvent | None,
        meter: UsageMeter | None,
        *,
        is_bulk: bool,
        model: str,
    ) -> EngineAnswer:
        route = self._routes.get(endpoint)
        if route is None:
            return unknown_endpoint_answer(endpoint)
        events: StreamEvents | None = None
        try:
            if endpoint in STREAMED_ENDPOINTS:
                request = self._parse(route, body, model, is_bulk=is_bulk)
                if refused := self._refusal(request, body, may_stream=emit is not None):
                    return refused
                if request.stream and emit is not None:
                    events = _stream_events(request, emit, meter)
                    work = self._stream(route, request, events)
                else:
                    work = self._respond(route, request, meter)
            else:
                work = self._pool(endpoint, route, body, model, is_bulk=is_bulk)
            return await self._timeout.run(work)
        except ValidationError as mistakes:
            return invalid_body_answer(mistakes)
        except EngineDeadError:
            raise
        except VllmEngineDeadError as death:
            raise EngineDeadError from death
        except TimeoutError:
            timed_out = item_timeout_answer(self._item_timeout_s)
            return events.interrupted(timed_out) if events is not None else timed_out
        except Exception as refusal:  # vLLM maps its exceptions to statuses
            if self._engine.errored:
                raise EngineDeadError from refusal
            if is_bulk and is_out_of_memory(refusal):  # its batch is split; a call just fails
                raise EngineOutOfMemoryError from refusal
            if (answer := failure_answer(refusal)) is not None:
                return answer
            return answer_from_response(create_error_response(refusal))

    def _parse(self, route: Route, body: bytes, model: str, *, is_bulk: bool) -> Any:
        """Return vLLM's request to the model or an adapter. Raises ValidationError."""
        parse = route.request
        if (
            route.plain is not None
            and not has_few_values(body)
            and (short := with_short_input(body)) is not None
        ):
            parse.validate_json(short)  # the other fields
            parse = route.plain
        request = parse.validate_json(body)
        request.model = model
        sequences = prompt_count(getattr(request, "prompt", None)) * (getattr(request, "n", 1) or 1)
        request.priority = scheduler_priority(
            request.priority, is_bulk=is_bulk, is_large=sequences > self._small_sequences_max
        )
        if request.truncate_prompt_tokens is not None and request.truncation_side is None:
            # With its default made explicit, vLLM cuts a long text before it tokenizes it.
            request.truncation_side = self._engine.get_tokenizer().truncation_side
        return request

    async def _pool(
        self, endpoint: str, route: Route, body: bytes, model: str, *, is_bulk: bool
    ) -> EngineAnswer:
        """Run a body of inputs, a slice of them at a time.

        The slices of a call are bounded by their time; items have a step of the engine each, since
        online calls overtake them.
        """
        pace = self._item_pace if is_bulk else self._call_pace
        slices = InputSlices(endpoint if route.is_split else "", body, self._slice_limits, pace)
        sliced = SlicedAnswer(endpoint, body, self._answer_bytes_max)
        while (part := slices.next_body()) is not None:
            request = self._parse(route, part, model, is_bulk=is_bulk)
            began_s = time.monotonic()
            response = await route.handle(request)
            answer = answer_from_response(response)
            slices.record(answer.input_tokens, time.monotonic() - began_s)
            query_tokens = getattr(response, "query_tokens", 0) if slices.has_shared_query else 0
            if (failed := sliced.add(answer, query_tokens)) is not None:
                return failed
        return sliced.join()

    async def _respond(self, route: Route, request: Any, meter: UsageMeter | None) -> EngineAnswer:
        """Run a request whose answer is not streamed.

        The meter does not count a search over beams: it gives vLLM a sequence for each token.
        """
        meter = None if request.use_beam_search else meter
        has_one_prompt = prompt_count(getattr(request, "prompt", None)) == 1
        with counted_sequences(meter, shares_prompt=has_one_prompt):
            return await self._run_waves(route, request)

    async def _run_waves(self, route: Route, request: Any) -> EngineAnswer:
        """Run the waves of a request one after the other; encode log probabilities in between."""
        waves = sequence_waves(request, wave_sequences(request, self._wave_limits))
        responses = []
        logprobs = AnswerLogprobs(_encode_positions, self._encoding, self._answer_bytes_max)
        for wave in waves:
            with deferred_logprobs(is_deferred=not request.use_beam_search) as deferred:
                response = await route.handle(wave)
            if isinstance(response, ErrorResponse):
                return answer_from_response(response)
            try:
                await logprobs.add(response, deferred)
            except AnswerTooLargeError:
                return too_large_answer(self._answer_bytes_max, _SHORTEN)
            responses.append(response)
        whole = join_responses(waves, responses)
        return answer_of_body(whole, logprobs.insert_into(whole.model_dump_json().encode()))

    def _refusal(self, request: Any, body: bytes, *, may_stream: bool) -> EngineAnswer | None:
        """Return the refusal of a body that vLLM would accept, or None."""
        if request.stream and not may_stream:
            return stream_unsupported_answer()
        if endless := endless_reference_answer(body):
            return endless
        if not self._accepts_any_grammar and (costly := costly_grammar_answer(body)):
            return costly
        prompt = getattr(request, "prompt", None)  # a chat has none
        sequences_max = self._sequences_max
        if request.stream:  # a stream has no waves
            sequences_max = min(sequences_max, self._sequences_at_once)
        return sequence_limit_answer(prompt, request.n, sequences_max)

    async def _stream(self, route: Route, request: Any, events: StreamEvents) -> EngineAnswer:
        """Run a streaming request; cancelling aborts its sequences."""
        response = await route.handle(request)
        if not hasattr(response, "__aiter__"):
            return answer_from_response(response)
        has_more = True
        async for text in response:
            has_more = has_more and events.on_event(text.removeprefix("data: ").rstrip().encode())
        if self._engine.errored:  # vLLM also sends it as an event
            raise EngineDeadError
        return events.end()


def _with_model(emit: EmitEvent, write_model: WriteModel) -> EmitEvent:
    return lambda event: emit(write_model(event))


def _keep_only_own_statistics(engine: AsyncLLM) -> None:
    """Remove the Prometheus logger, which vLLM adds to any other: it costs time in each step."""
    manager = engine.logger_manager
    manager.stat_loggers = [
        logger for logger in manager.stat_loggers if not isinstance(logger, PrometheusStatLogger)
    ]


def _defer_logprobs(engine: AsyncLLM, state: SimpleNamespace) -> None:
    """Let log probabilities be encoded by `AnswerLogprobs`."""
    defer_outputs(engine)
    if (chat := getattr(state, "openai_serving_chat", None)) is not None:
        defer_creation(chat, "_create_chat_logprobs")
    if (completion := getattr(state, "openai_serving_completion", None)) is not None:
        defer_creation(completion, "_create_completion_logprobs")


def _encode_positions(positions: list[Any]) -> bytes:
    """Encode some positions of a prompt, as vLLM does in a response."""
    return _PROMPT_LOGPROBS.dump_json(clamp_prompt_logprobs(positions))


def _stream_events(request: Any, emit: EmitEvent, meter: UsageMeter | None) -> StreamEvents:
    """Request running usage, so that an aborted stream is counted; hide it from the client."""
    options = request.stream_options
    requested = StreamOptions(
        include_usage=options is not None and options.include_usage,
        continuous_usage_stats=options is not None and options.continuous_usage_stats,
    )
    request.stream_options = VllmStreamOptions(include_usage=True, continuous_usage_stats=True)
    shows_running = requested.include_usage and requested.continuous_usage_stats
    return StreamEvents(
        emit, requested, meter, strips_usage=not shows_running, choices_per_prompt=request.n or 1
    )
