"""vLLM in this process, behind its own OpenAI serving layer; its engine core is a child process.

vLLM is imported by `start`, after the variables that it reads while being imported are set.
"""

import asyncio
import contextlib
import os
import tempfile
from collections.abc import Awaitable, Callable, Collection, MutableMapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from core.errors import (
    Disposition,
    MillraceError,
    PoolBusyError,
    PoolUnavailableError,
    SettingsError,
)
from core.runtime.garbage_collection import collect_rarely
from gpu_consumers import metrics
from gpu_consumers.adapters.adapter_slots import (
    AdapterRefusedError,
    AdapterSlots,
    PinnedFolder,
    StageAdapter,
)
from gpu_consumers.engines.engine import (
    EmitEvent,
    EngineAnswer,
    EngineUse,
    OnAnswer,
    UsageMeter,
)
from gpu_consumers.engines.engine_slots import EngineSlots, SlottedEngine
from gpu_consumers.engines.error_answers import error_answer
from gpu_consumers.engines.item_pool import ItemPool
from gpu_consumers.engines.settings import CPU_SEQUENCES, EngineSettings
from gpu_consumers.engines.vllm.bulk_window import BulkWindow, EngineLoad
from gpu_consumers.engines.vllm.child_processes import use_as_child_main_module
from gpu_consumers.engines.vllm.engine_arguments import ModelToLoad, vllm_arguments
from gpu_consumers.engines.vllm.log_redaction import DEFAULT_LEVEL

if TYPE_CHECKING:
    from gpu_consumers.engines.vllm.serving import VllmServing

T = TypeVar("T")

_SOCKET_PATH_BYTES_MAX = 107
_SOCKET_NAME_BYTES = 37

_OFFLINE: Final = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
"""What the files of a version lack is not fetched: it would be no part of the version."""


class VllmEngine(SlottedEngine):
    """One model on this machine's GPU or CPU."""

    def __init__(
        self,
        settings: EngineSettings,
        model: ModelToLoad | None = None,
        *,
        stage_adapter: StageAdapter | None = None,
        on_untrusted: Callable[[MillraceError], None] = lambda _: None,
    ) -> None:
        """`start` loads `model`; without one, the folder `settings.model_path`.

        `stage_adapter` returns the files of adapters; without it none are loaded. `on_untrusted` is
        called once when an output is of other weights than those that were loaded: items fail with
        PoolUnavailableError from then on, and the process must end.
        """
        self._settings, self._model = settings, model
        self._stage_adapter, self._on_untrusted = stage_adapter, on_untrusted
        sequences_max = settings.vllm_max_num_seqs or CPU_SEQUENCES
        super().__init__(self._slots_for(sequences_max))  # an estimate until `start`
        self._window = self._window_for(sequences_max)
        self._serving: VllmServing | None = None
        self._pool: ItemPool | None = None
        self._adapters: AdapterSlots | None = None
        self._use = EngineUse()

    def _slots_for(self, sequences_max: int) -> EngineSlots:
        items = self._settings.items_with(sequences_max)
        return EngineSlots(items, self._settings.headroom_of(items), running_max=sequences_max)

    def _window_for(self, sequences_max: int) -> BulkWindow:
        token_ms_max = self._settings.vllm_token_ms_max
        return BulkWindow(
            self._slots.total - self._slots.headroom,
            sequences_max=sequences_max,
            token_s_max=None if token_ms_max is None else token_ms_max / 1000,
        )

    @property
    def engine_hash(self) -> str:
        """See `Engine`."""
        return "" if self._serving is None else self._serving.engine_hash

    @property
    def adapters(self) -> Collection[str]:
        """See `Engine`."""
        return () if self._adapters is None else self._adapters.versions

    @property
    def bulk_concurrency(self) -> int:
        """See `Engine`; it follows the load of the engine."""
        return self._window.size

    @property
    def unfinished(self) -> int:
        """Sequences in vLLM; 0 once nothing runs and nothing waits to be aborted."""
        return 0 if self._serving is None else self._serving.unfinished

    @property
    def use(self) -> EngineUse:
        """See `ReportsUse`: of the last step; an idle engine makes none."""
        return self._use if self.unfinished else EngineUse()

    @property
    def can_sleep(self) -> bool:
        """See `CanSleep`: only CUDA has vLLM's sleep mode, and only if it was loaded with it."""
        return self._serving is not None and self._serving.sleep_mode.is_enabled

    async def sleep(self) -> None:
        """See `CanSleep`."""
        assert self._serving is not None, "start first"
        await self._serving.sleep_mode.sleep()

    async def wake(self) -> None:
        """See `CanSleep`."""
        assert self._serving is not None, "start first"
        await self._serving.sleep_mode.wake()

    async def start(self) -> None:
        """Load the model; blocks the event loop for 10 to 40 s. Raises SettingsError.

        Runs on the main thread on purpose: a child ends with the thread that started it.
        """
        model = self._model
        if model is None:
            if self._settings.model_path is None:
                raise SettingsError("Neither model_path nor a version of the model is given.")
            model = ModelToLoad(folder=self._settings.model_path)
        vllm_arguments(self._settings, model)  # mistakes that need no vLLM, before its import
        set_environment(os.environ, self._settings, model)
        use_as_child_main_module()
        collect_rarely()
        from gpu_consumers.engines.vllm.serving import VllmServing

        self._serving = await VllmServing.start(
            self._settings, model, self._adapt_window, self._on_untrusted
        )
        sequences_max = self._serving.steps_sequences_max
        self._use_slots(self._slots_for(sequences_max))
        self._window = self._window_for(sequences_max)
        self._adapters = AdapterSlots(
            self._settings.adapters_max,
            self._stage_adapter or _refuse_adapter,
            self._serving.adapters,
        )
        self._pool = ItemPool(
            partial(self._serving.run, emit=None, meter=None, is_bulk=True),
            self._slots,
            preempts=True,
        )
        metrics.ENGINE_BULK_WINDOW.set(self._window.size)

    async def execute(
        self, endpoint: str, bodies: Sequence[bytes], finished: OnAnswer, adapter: str = ""
    ) -> None:
        """See `Engine`; a cancelled item's KV cache is freed by vLLM's abort."""
        assert self._pool is not None, "start first"
        assert self._serving is not None, "start first"
        pool = self._pool
        if not adapter:
            await pool.execute(endpoint, bodies, finished)
            return
        run = partial(self._serving.run, emit=None, meter=None, is_bulk=True, adapter=adapter)
        refused = await self._with_adapter(
            adapter, lambda: pool.execute(endpoint, bodies, finished, run)
        )
        if isinstance(refused, EngineAnswer):
            for index in range(len(bodies)):
                finished(index, refused)

    async def _with_adapter(
        self, adapter: str, work: Callable[[], Awaitable[T]]
    ) -> T | EngineAnswer:
        """Return what `work` returns while the adapter is loaded; the refusal of an adapter.

        Raises PoolBusyError when the adapter cannot be loaded now.
        """
        assert self._adapters is not None, "start first"
        async with contextlib.AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(self._adapters.use(adapter))
            except PoolUnavailableError:
                raise
            except MillraceError as failure:
                if failure.disposition is Disposition.RETRY:
                    raise PoolBusyError(failure.code) from failure
                if failure.disposition is Disposition.CRASH:
                    raise
                return error_answer(400, str(failure), param="model", code=failure.code)
            return await work()

    def _adapt_window(self, load: EngineLoad) -> None:
        """Let bulk items start within the window that suits the engine's load."""
        self._use = EngineUse(load.waiting, load.kv_usage)
        before = self._window.size
        now_s = asyncio.get_running_loop().time()
        size = self._window.update(load, in_use=self._slots.counts.bulk, now_s=now_s)
        if size != before:
            metrics.ENGINE_BULK_WINDOW.set(size)
            self._slots.set_bulk_limit(size)

    async def _serve(
        self,
        endpoint: str,
        body: bytes,
        emit: EmitEvent | None,
        meter: UsageMeter | None,
        adapter: str,
    ) -> EngineAnswer:
        """A cancelled call's KV cache is freed by vLLM's abort."""
        assert self._serving is not None, "start first"
        run = partial(
            self._serving.run, endpoint, body, emit, meter, is_bulk=False, adapter=adapter
        )
        return await self._with_adapter(adapter, run) if adapter else await run()

    async def stop(self) -> None:
        """See `Engine`."""
        if self._serving is not None:
            self._serving.shut_down()
            self._serving = self._pool = None
        if self._adapters is not None:
            await self._adapters.close()


async def _refuse_adapter(_: str) -> PinnedFolder:
    raise AdapterRefusedError("This replica has no source of adapters.")


def set_environment(
    environment: MutableMapping[str, str], settings: EngineSettings, model: ModelToLoad
) -> None:
    """Set vLLM's variables. An operator's own values win, unless they let a version go online."""
    has_plan = model.kv_cache_memory_bytes is not None
    for name, value in vllm_environment(settings, has_memory_plan=has_plan).items():
        environment.setdefault(name, value)
    if model.version:
        environment.update(_OFFLINE)


def vllm_environment(settings: EngineSettings, *, has_memory_plan: bool = False) -> dict[str, str]:
    """Return the environment variables of vLLM, which reads most of them while being imported.

    `has_memory_plan`: the size of the KV cache is an argument, which the variable would override.
    """
    has_own_logging = "VLLM_LOGGING_CONFIG_PATH" in os.environ
    cache = {} if has_memory_plan else {"VLLM_CPU_KVCACHE_SPACE": str(settings.vllm_kv_cache_gib)}
    return cache | {
        **_OFFLINE,
        # Its records use the role's handlers, unless an operator configures others.
        "VLLM_CONFIGURE_LOGGING": str(int(has_own_logging)),
        "VLLM_DO_NOT_TRACK": "1",
        "VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0",  # the redirect's host would not be checked
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": DEFAULT_LEVEL,
        "VLLM_LOGGING_STREAM": "ext://sys.stderr",
        "VLLM_RPC_BASE_PATH": _socket_folder(tempfile.gettempdir()),
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # see child_processes; its own server does so, too
    }


def _socket_folder(temporary: str) -> str:
    """Return the folder of vLLM's sockets, whose paths must be short."""
    fits = len(os.fsencode(temporary)) + _SOCKET_NAME_BYTES <= _SOCKET_PATH_BYTES_MAX
    return temporary if fits else "/tmp"  # noqa: S108 (the names are random)
