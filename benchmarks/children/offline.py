"""Offline generation: `python -m benchmarks.children.offline MODEL_FOLDER ITEMS`.

The options are those of Millrace's vLLM engine, parsed by vLLM from the same command line. The
engine core is a process of its own, as in vLLM by default and in Millrace's engine.
"""

import json
import os
import sys
import time
from pathlib import Path

from benchmarks.children.line_child import die_with_parent, report_line, wait_for_line
from benchmarks.data.input_files import Prompt, prompts, sampling
from gpu_consumers.engines.settings import EngineSettings
from gpu_consumers.engines.vllm.engine_arguments import vllm_arguments
from gpu_consumers.engines.vllm.vllm_engine import vllm_environment

WARM_UP_ITEMS = 16


def main(folder: str, items: str) -> None:
    """Load, warm up, wait for a line, generate, and report wall time and tokens."""
    settings = EngineSettings(kind="vllm", model_name="bench", model_path=Path(folder))
    for name, value in vllm_environment(settings).items():
        os.environ.setdefault(name, value)
    from vllm import LLM, SamplingParams
    from vllm.engine.arg_utils import EngineArgs
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.platforms import current_platform
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    arguments = vllm_arguments(settings)
    if current_platform.is_cpu():  # as Millrace's engine does there
        arguments += ["--distributed-executor-backend=uni", "--enforce-eager"]
    parsed = make_arg_parser(FlexibleArgumentParser()).parse_args(arguments)
    model = LLM.from_engine_args(EngineArgs.from_cli_args(parsed))

    def generate(batch: list[Prompt]) -> int:
        parameters = [SamplingParams(**sampling(prompt)) for prompt in batch]
        texts = [prompt.text for prompt in batch]
        answers = model.generate(texts, parameters, use_tqdm=False)
        return sum(len(answer.outputs[0].token_ids) for answer in answers)

    measured = prompts(int(items))
    generate(prompts(WARM_UP_ITEMS, seed=0))
    report_line("ready")
    wait_for_line()
    began_s = time.perf_counter()
    tokens = generate(measured)
    report_line("result", json.dumps({"seconds": time.perf_counter() - began_s, "tokens": tokens}))
    wait_for_line()


if __name__ == "__main__":
    die_with_parent()
    main(*sys.argv[1:])
