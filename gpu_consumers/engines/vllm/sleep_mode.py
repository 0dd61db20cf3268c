"""vLLM's sleep mode, in which an engine that waits for its first work frees its GPU."""

from vllm.platforms import current_platform
from vllm.v1.engine.async_llm import AsyncLLM

from core.errors import EngineDeadError


class SleepMode:
    """Puts one engine to sleep. An engine that fails at it cannot serve."""

    def __init__(self, engine: AsyncLLM) -> None:
        self._engine = engine

    @property
    def is_enabled(self) -> bool:
        """Whether the engine was loaded with the mode, on CUDA."""
        is_loaded_with_it = bool(self._engine.vllm_config.model_config.enable_sleep_mode)
        return is_loaded_with_it and bool(current_platform.is_cuda())

    async def sleep(self) -> None:
        """Move the weights to the memory of the host and drop the KV cache (level 1).

        Raises EngineDeadError.
        """
        try:
            await self._engine.sleep(level=1)
        except Exception as failure:  # vLLM documents none
            raise EngineDeadError(f"vLLM does not sleep: {failure}") from failure

    async def wake(self) -> None:
        """Undo `sleep`. Raises EngineDeadError."""
        try:
            is_awake = await self._engine.wake_up()
        except Exception as failure:  # vLLM documents none
            raise EngineDeadError(f"vLLM does not wake: {failure}") from failure
        if not is_awake:
            raise EngineDeadError("vLLM does not wake: it stays asleep in part.")
