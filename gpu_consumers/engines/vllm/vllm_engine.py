"""vLLM in this process, behind its own OpenAI serving layer; its engine core is a child process.

vLLM is imported by `start`, after the variables that it reads while being imported are set.
"""

import asyncio
import os
import tempfile
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from core.errors import SettingsError
from gpu_consumers import metrics
from gpu_consumers.engines.engine import EmitEvent, EngineAnswer, OnAnswer, UsageMeter
from gpu_consumers.engines.engine_slots import EngineSlots, SlottedEngine
from gpu_consumers.engines.item_pool import ItemPool
from gpu_consumers.engines.model_kind import runner_of_folder
from gpu_consumers.engines.settings import EngineSettings
from gpu_consumers.engines.vllm.bulk_window import BulkWindow, EngineLoad
from gpu_consumers.engines.vllm.child_processes import use_as_child_main_module
from gpu_consumers.engines.vllm.log_redaction import DEFAULT_LEVEL

if TYPE_CHECKING:
    from gpu_consumers.engines.vllm.serving import VllmServing

_SOCKET_PATH_BYTES_MAX = 107
_SOCKET_NAME_BYTES = 37
_NO_DOMAIN = "media.invalid"
"""To vLLM an empty list allows every host; names under `.invalid` never resolve (RFC 6761)."""
_TOKENIZER_THREADS = 4
"""Threads that render and tokenize prompts; each has a tokenizer. With vLLM's one, a call waits for
the long prompt of another, which takes seconds."""


class VllmEngine(SlottedEngine):
    """One model on this machine's GPU or CPU."""

    def __init__(self, settings: EngineSettings) -> None:
        """`settings.model_path` must be given; `start` loads the model."""
        slots_max, running_max = settings.items_at_once, settings.vllm_max_num_seqs
        super().__init__(EngineSlots(slots_max, settings.headroom, running_max=running_max))
        self._settings = settings
        token_ms_max = settings.vllm_token_ms_max
        self._window = BulkWindow(
            slots_max - settings.headroom,
            sequences_max=running_max,
            token_s_max=None if token_ms_max is None else token_ms_max / 1000,
        )
        self._serving: VllmServing | None = None
        self._pool: ItemPool | None = None

    @property
    def bulk_concurrency(self) -> int:
        """See `Engine`; it follows the load of the engine."""
        return self._window.size

    @property
    def unfinished(self) -> int:
        """Sequences in vLLM; 0 once nothing runs and nothing waits to be aborted."""
        return 0 if self._serving is None else self._serving.unfinished

    async def start(self) -> None:
        """Load the model; blocks the event loop for 10 to 40 s. Raises SettingsError.

        Runs on the main thread on purpose: a child ends with the thread that started it.
        """
        arguments = vllm_arguments(self._settings)
        for name, value in vllm_environment(self._settings).items():
            os.environ.setdefault(name, value)  # an operator's own value wins
        use_as_child_main_module()
        from gpu_consumers.engines.vllm.serving import VllmServing

        self._serving = await VllmServing.start(arguments, self._settings, self._adapt_window)
        self._pool = ItemPool(
            partial(self._serving.run, emit=None, meter=None, is_bulk=True),
            self._slots,
            preempts=True,
        )
        metrics.ENGINE_BULK_WINDOW.set(self._window.size)

    async def execute(self, endpoint: str, bodies: Sequence[bytes], finished: OnAnswer) -> None:
        """See `Engine`; a cancelled item's KV cache is freed by vLLM's abort."""
        assert self._pool is not None, "start first"
        await self._pool.execute(endpoint, bodies, finished)

    def _adapt_window(self, load: EngineLoad) -> None:
        """Let bulk items start within the window that suits the engine's load."""
        before = self._window.size
        now_s = asyncio.get_running_loop().time()
        size = self._window.update(load, in_use=self._slots.counts.bulk, now_s=now_s)
        if size != before:
            metrics.ENGINE_BULK_WINDOW.set(size)
            self._slots.set_bulk_limit(size)

    async def _serve(
        self, endpoint: str, body: bytes, emit: EmitEvent | None, meter: UsageMeter | None
    ) -> EngineAnswer:
        """A cancelled call's KV cache is freed by vLLM's abort."""
        assert self._serving is not None, "start first"
        return await self._serving.run(endpoint, body, emit, meter, is_bulk=False)

    async def stop(self) -> None:
        """See `Engine`."""
        if self._serving is not None:
            self._serving.shut_down()
            self._serving = self._pool = None


def vllm_environment(settings: EngineSettings) -> dict[str, str]:
    """Return the environment variables of vLLM, which reads most of them while being imported."""
    has_own_logging = "VLLM_LOGGING_CONFIG_PATH" in os.environ
    return {
        "HF_HUB_OFFLINE": "1",
        # Its records use the role's handlers, unless an operator configures others.
        "VLLM_CONFIGURE_LOGGING": str(int(has_own_logging)),
        "VLLM_CPU_KVCACHE_SPACE": str(settings.vllm_kv_cache_gib),
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


def vllm_arguments(settings: EngineSettings) -> list[str]:
    """Return vLLM's command line, its interface that is stable across releases."""
    path = settings.model_path
    if path is None or not path.is_dir():
        raise SettingsError("model_path is not a folder.")
    runner = settings.vllm_runner
    if runner == "auto":
        runner = runner_of_folder(path)
    arguments = [
        f"--model={path}",
        f"--served-model-name={settings.model_name}",
        f"--runner={runner}",
        f"--dtype={settings.vllm_dtype}",
        f"--max-num-seqs={settings.vllm_max_num_seqs}",
        f"--gpu-memory-utilization={settings.vllm_gpu_memory_utilization}",
        "--scheduling-policy=priority",
        "--allowed-media-domains",  # clients name URLs, and this host may reach private hosts
        *(settings.vllm_allowed_media_domains or _NO_DOMAIN).split(","),
        "--enable-prompt-tokens-details",
        "--disable-log-stats",
    ]
    if runner == "generate":  # vLLM refuses it for multimodal models that embed
        arguments.append(f"--renderer-num-workers={_TOKENIZER_THREADS}")
    if (parser := settings.vllm_tool_call_parser) is not None:
        arguments += ["--enable-auto-tool-choice", f"--tool-call-parser={parser}"]
    if (template := settings.vllm_chat_template) is not None:
        if not template.is_file():
            raise SettingsError("vllm_chat_template is not a file.")
        arguments.append(f"--chat-template={template}")
    if settings.vllm_max_model_len is not None:
        arguments.append(f"--max-model-len={settings.vllm_max_model_len}")
    return arguments
