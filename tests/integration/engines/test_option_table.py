"""Goal: the control plane checks options by the table of the pinned vLLM."""

import subprocess
import sys
from importlib.resources import files

from registry.engine_options.engine_options import TABLE_NAME

_GENERATOR = "gpu_consumers.engines.vllm.option_table"


def test_the_table_is_that_of_the_installed_vllm() -> None:
    """Otherwise write the output of the generator to the file."""
    generated = subprocess.run(
        [sys.executable, "-m", _GENERATOR], check=True, capture_output=True, timeout=200
    ).stdout
    stored = files("registry.engine_options").joinpath(TABLE_NAME).read_bytes()
    assert generated.decode() == stored.decode()
