"""`python -m benchmarks.children.small_cache_replica BLOCKS`: a replica with a small KV cache.

vLLM gets so many blocks of `BLOCK_TOKENS` tokens. Millrace has no setting for it: on a GPU the
memory that is left decides, and the smallest cache on a CPU holds far more than a test's prompts.
"""

import sys
from functools import partial
from typing import Any, Final

from gpu_consumers.__main__ import main
from gpu_consumers.engines.vllm import engine_arguments
from gpu_consumers.engines.vllm.engine_arguments import vllm_arguments

BLOCK_TOKENS: Final = 32


def arguments_with_blocks(block_count: int, *values: Any, **names: Any) -> list[str]:
    """Return vLLM's command line with a cache of so many blocks."""
    cache = [f"--num-gpu-blocks-override={block_count}", f"--block-size={BLOCK_TOKENS}"]
    return vllm_arguments(*values, **names) + cache


if __name__ == "__main__":
    # Before the module that uses it is imported, with vLLM, when the engine starts.
    patched = partial(arguments_with_blocks, int(sys.argv[1]))
    engine_arguments.vllm_arguments = patched
    main()
