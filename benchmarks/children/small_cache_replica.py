"""`python -m benchmarks.children.small_cache_replica BLOCKS`: a replica with a small KV cache.

vLLM gets so many blocks of `BLOCK_TOKENS` tokens. Millrace has no setting for it: on a GPU the
memory that is left decides, and the smallest cache on a CPU holds far more than a test's prompts.
"""

import sys
from typing import Final

from gpu_consumers.__main__ import main
from gpu_consumers.engines.settings import EngineSettings
from gpu_consumers.engines.vllm import vllm_engine
from gpu_consumers.engines.vllm.vllm_engine import vllm_arguments

BLOCK_TOKENS: Final = 32


def arguments_with_blocks(settings: EngineSettings, block_count: int) -> list[str]:
    """Return vLLM's command line with a cache of so many blocks."""
    cache = [f"--num-gpu-blocks-override={block_count}", f"--block-size={BLOCK_TOKENS}"]
    return vllm_arguments(settings) + cache


if __name__ == "__main__":
    blocks = int(sys.argv[1])
    vllm_engine.vllm_arguments = lambda settings: arguments_with_blocks(settings, blocks)
    main()
