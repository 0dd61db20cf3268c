"""Adds LoRA adapters to vLLM and removes them."""

import contextlib
from typing import Any, Final

from vllm.lora.request import LoRARequest
from vllm.v1.engine.async_llm import AsyncLLM

from core.errors import EngineDeadError
from gpu_consumers.adapters.adapter_slots import AdapterRefusedError, LoadedAdapter

_MESSAGE_CHARS_MAX: Final = 500


class VllmAdapters:
    """The adapters that vLLM's engine and its serving layer know; their name is their version.

    vLLM's prefix cache is keyed by this name, so blocks of one adapter serve no other.
    """

    def __init__(self, engine: AsyncLLM, models: Any) -> None:
        """`models` is the serving layer's list of models."""
        self._engine, self._requests = engine, models.lora_requests

    async def add(self, adapter: LoadedAdapter) -> None:
        """Load an adapter into the engine.

        A request with an adapter that vLLM cannot load would end the engine; `add_lora` only fails.
        Raises AdapterRefusedError, EngineDeadError.
        """
        folder = str(adapter.folder.path)
        request = LoRARequest(
            lora_name=adapter.version, lora_int_id=adapter.number, lora_path=folder
        )
        try:
            await self._engine.add_lora(request)
        except Exception as failure:  # vLLM documents none
            if self._engine.errored:
                raise EngineDeadError from failure
            with contextlib.suppress(Exception):  # it may have failed halfway
                await self._engine.remove_lora(adapter.number)
            message = " ".join(str(failure).replace(folder, "its folder").split())
            raise AdapterRefusedError(
                f"vLLM does not load the adapter: {message[:_MESSAGE_CHARS_MAX]}"
            ) from failure
        self._requests[adapter.version] = request

    async def remove(self, adapter: LoadedAdapter) -> None:
        """Unload an adapter from the engine; vLLM's serving layer alone would not."""
        self._requests.pop(adapter.version, None)
        await self._engine.remove_lora(adapter.number)
