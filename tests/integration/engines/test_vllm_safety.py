"""Goal: the installed vLLM fetches nothing that a client names, and logs nothing that one said.

What it logs are lines of the role, in its own processes, too: also why it does not start.

In a process of its own: what is set must be there before vLLM is imported.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from cli.demo.demo_models import ensure_tiny_llama

PROGRAM = r"""
import argparse, asyncio, base64, io, json, logging, multiprocessing, os, socket, sys
from core.runtime.logs import configure_logs
from gpu_consumers.engines.settings import EngineSettings
from gpu_consumers.engines.vllm.engine_arguments import vllm_arguments
from gpu_consumers.engines.vllm.vllm_engine import VllmEngine, vllm_environment
from gpu_consumers.engines.vllm.child_processes import use_as_child_main_module

configure_logs("gpu-consumer")
settings = EngineSettings.from_env(os.environ)
os.environ.update(vllm_environment(settings))
use_as_child_main_module()
domains = "files.test,example.com"
opened = settings.model_copy(update={"vllm_allowed_media_domains": domains})

from PIL import Image
from vllm import envs
from vllm.logging_utils.dump_input import logger
from vllm.config.logging import LoggingConfig
from vllm.logger import configure_logging
from vllm.multimodal.media.connector import MediaConnector
from vllm.tool_parsers.hermes_tool_parser import Hermes2ProToolParser
from vllm.tool_parsers.xlam_tool_parser import xLAMToolParser

own = socket.getaddrinfo, socket.socket.connect
reached = []
def refuse(*address, **_):
    reached.append(address[0])
    raise OSError("no network")
socket.getaddrinfo = refuse
socket.socket.connect = lambda _, address: refuse(*address)

content = io.BytesIO()
Image.new("RGB", (2, 2)).save(content, "PNG")
urls = {
    "address": "http://169.254.169.254/latest/meta-data",
    "name": "https://example.com/a.png",
    "file": "file:///etc/hostname",
    "data": "data:image/png;base64," + base64.b64encode(content.getvalue()).decode(),
}
parser = argparse.ArgumentParser()
parser.add_argument("--allowed-media-domains", nargs="+")
parser.add_argument("--allowed-local-media-path", default="")

def taken(settings):
    given, _ = parser.parse_known_args(vllm_arguments(settings))
    connector = MediaConnector(
        allowed_local_media_path=given.allowed_local_media_path,
        allowed_media_domains=given.allowed_media_domains,
    )
    reached.clear()
    found = []
    for name, url in urls.items():
        try:
            connector.fetch_image(url)
            found.append(name)
        except Exception:
            pass
    return found, sorted(set(reached))

configure_logging(LoggingConfig())  # as vLLM does when it starts, and each of its processes
logger.error("Dumping scheduler output: %s", "what a client said")

def answered(parser, output):
    found = parser(object()).extract_tool_calls(output, None)
    assert (found.tools_called, found.content) == (False, output)

odd = '{"name": ["what a client said"], "arguments": {}}'
answered(Hermes2ProToolParser, "<tool_call>" + odd + "</tool_call>")
answered(xLAMToolParser, "[" + odd + "]")

core = logging.getLogger("vllm.v1.engine.core")
child = multiprocessing.get_context("spawn").Process(
    target=core.error, args=("It took %s.", "what a client said")
)
child.start()
child.join()
taken = [taken(settings), taken(opened)]

socket.getaddrinfo, socket.socket.connect = own
def refusal(**changes):
    try:
        asyncio.run(VllmEngine(settings.model_copy(update=changes)).start())
    except Exception as failure:
        return [type(failure).__name__, str(failure)]

refusals = [refusal(vllm_tool_call_parser="nonsense"), refusal()]
json.dump([*taken, envs.VLLM_MEDIA_URL_ALLOW_REDIRECTS, *refusals], sys.stdout)
"""


@pytest.mark.timeout(150)
def test_media_only_from_allowed_hosts_and_no_text_is_logged(tmp_path: Path) -> None:
    whole = ensure_tiny_llama(tmp_path / "whole")
    model = tmp_path / "model"
    shutil.copytree(whole, model, ignore=shutil.ignore_patterns("*.safetensors"))
    settings = {"KIND": "vllm", "MODEL_NAME": "m", "MODEL_PATH": str(model)}
    ours = {f"MILLRACE_ENGINE_{name}": value for name, value in settings.items()}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_")}
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=kept | ours,
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr.decode()
    shut, opened, redirects, parser, start = msgspec.json.decode(run.stdout)
    assert shut == [["data"], []]
    assert opened == [["data"], ["example.com"]]
    assert redirects is False
    # Refused before the model is loaded: this one has no weights.
    assert parser[0] == "EngineOptionsRefusedError"
    assert re.search(r"tool_call_parser: vLLM has no .nonsense.; it has .*hermes", parser[1])
    assert start[0] == "EngineDeadError"
    assert b"Cannot find any model weights" in run.stderr
    assert b"client said" not in run.stderr
    lines = [msgspec.json.decode(line) for line in run.stderr.splitlines() if line[:1] == b"{"]
    assert {line["role"] for line in lines} == {"gpu-consumer"}
    told = {(line["logger"], line["event"].rpartition(": ")[2]) for line in lines}
    for name in ("hermes", "xlam"):
        assert (f"vllm.tool_parsers.{name}_tool_parser", "ValidationError.") in told
    assert ("vllm.v1.engine.core", "It took %s.") in told
