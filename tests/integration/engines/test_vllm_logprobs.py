"""Goal: log probabilities kept as arrays and encoded in pieces have the bytes that vLLM makes.

In a process of its own, which loads vLLM without an engine: `logprob_program`.
"""

import os
from pathlib import Path

import msgspec
import pytest

from tests.support.vllm_programs import run_program


@pytest.mark.timeout(300)
def test_arrays_decode_to_what_vllm_keeps(tmp_path: Path, vllm_host: None) -> None:
    """Candidates beyond the request's, infinite numbers, and a character of several tokens."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_")}
    module = "tests.integration.engines.logprob_program"
    output = run_program(module, [], kept, tmp_path, timeout_s=240)
    own, arrays = msgspec.json.decode(output)
    assert len(own) == 8
    assert arrays == own
    assert "€" in own[0][0]
