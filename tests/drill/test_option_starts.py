"""Goal: options that vLLM's configuration accepts also start an engine, which answers.

Each case is a start of a real vLLM, about 30 s.
"""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from cli.demo.demo_models import ensure_tiny_llama
from tests.integration.engines.option_cases import OPTION_CASES, OptionCase

PROGRAM = r"""
import asyncio, ctypes, signal, sys
from pathlib import Path
import msgspec
from gpu_consumers.engines.settings import EngineSettings
from gpu_consumers.engines.vllm.engine_arguments import ModelToLoad
from gpu_consumers.engines.vllm.vllm_engine import VllmEngine

ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)

async def run(folder, options):
    values = {"KIND": "vllm", "MODEL_NAME": "m", "MODEL_PATH": folder}
    settings = EngineSettings.from_env({f"MILLRACE_ENGINE_{k}": v for k, v in values.items()})
    model = ModelToLoad(folder=Path(folder), version="7" * 64, engine_options=options)
    engine = VllmEngine(settings, model)
    await engine.start()
    body = b'{"model":"m","messages":[{"role":"user","content":"a"}],"max_tokens":4}'
    answer = await engine.serve("/v1/chat/completions", body, None)
    await engine.stop()
    return [answer.status_code, answer.output_tokens]

if __name__ == "__main__":
    outcome = asyncio.run(run(sys.argv[1], msgspec.json.decode(sys.argv[2])))
    sys.stdout.write(msgspec.json.encode(outcome).decode())
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ensure_tiny_llama(tmp_path_factory.mktemp("model") / "tiny")


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "case", [case for case in OPTION_CASES if case.starts], ids=lambda case: case.name
)
def test_accepted_options_start_an_engine(case: OptionCase, folder: Path) -> None:
    options = msgspec.json.encode(case.options).decode()
    command = [sys.executable, "-c", PROGRAM, str(folder), options]
    run = subprocess.run(command, capture_output=True, timeout=280, check=False)
    assert run.returncode == 0, run.stderr.decode()[-5_000:]
    status, tokens = msgspec.json.decode(run.stdout)
    assert status == 200
    assert 1 <= tokens <= 4
