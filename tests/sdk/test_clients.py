"""Goal: every supported release of the official client works unmodified, and the examples run.

Each check of a release is one test.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest

from tests.sdk.checks.catalogue import SIMULATED, checks
from tests.sdk.checks.site import RATE_TOKENS
from tests.sdk.environments import JAVASCRIPT, node, node_modules
from tests.sdk.runs import VERSIONS, Reports, reports_of
from tests.sdk.sites import OTHER_MODEL, add_idle_model, new_key, simulated_site
from tests.support.stacks import Stack, running_stack
from tests.unit.cli.scripted_server import Answer, serving

EXAMPLES = JAVASCRIPT.parent
ANSWER = r"Simulated [0-9a-f]{8}\..*"
BATCH = rf"batch_\w+ completed\nquestion-0: {ANSWER}\nquestion-1: {ANSWER}\nquestion-2: {ANSWER}\n"
CHAT = rf"whole: {ANSWER}\nstreamed: {ANSWER}\ntokens: 16\n"
VECTORS = r"[+-]\d\.\d{3} Someone eats a meal\.\n[+-]\d\.\d{3} The queue of the printer is full\.\n"
LINE = r'\{"id":"batch_req_\w+","custom_id":"question-%d".*\}\n'
CURL = {
    "batch": rf"batch_\w+ completed\n{LINE % 0}{LINE % 1}{LINE % 2}",
    "chat": r'\{"id":.*"content":"Simulated .*\}\n(data: \{.*\}\n\n)+data: \[DONE\]\n\n',
    "embeddings": r'\{"object":"list","data":\[.*"embedding":\[.*\}\n',
}
EXPECTED = {"batch": BATCH, "chat": CHAT, "embeddings": VECTORS}
EXAMPLE_S_MAX = 40.0

pytestmark = pytest.mark.timeout(400)  # the first test includes environment, stack and all checks


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A running stack of two simulated models, and a third without a replica."""
    data = tmp_path_factory.mktemp("stack")
    times = ("--simulated-latency-ms", "50", "--simulated-token-ms", "2")
    models = ("--model", "simulated", "--model", OTHER_MODEL)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MILLRACE_ONLINE_TOKENS_PER_MINUTE", str(RATE_TOKENS))
        with running_stack(data, *times, *models, "--allow-private-webhooks") as running:
            add_idle_model(running)
            yield running


@pytest.fixture(scope="module")
def reports(request: pytest.FixtureRequest, stack: Stack) -> Reports:
    """The reports of the simulated engine."""
    return reports_of(request, "test_on_the_simulated_engine", partial(simulated_site, stack))


@pytest.mark.parametrize(
    ("version", "check"), [(v, check) for v in VERSIONS for check in checks(SIMULATED, v)]
)
def test_on_the_simulated_engine(version: str, check: str, reports: Reports) -> None:
    if failure := reports(version)[check]:
        pytest.fail(failure, pytrace=False)


@pytest.fixture(scope="module")
def variables(stack: Stack) -> Mapping[str, str]:
    """The variables that examples/README.md requires."""
    return {
        **os.environ,
        "MILLRACE_URL": stack.url,
        "MILLRACE_KEY": new_key(stack),
        "MILLRACE_MODEL": stack.model,
    }


@pytest.fixture
def javascript(tmp_path: Path) -> Path:
    """The JavaScript examples with their packages."""
    for source in JAVASCRIPT.glob("*.mjs"):
        shutil.copy(source, tmp_path)
    (tmp_path / "node_modules").symlink_to(node_modules())
    return tmp_path


@pytest.mark.parametrize("name", EXPECTED)
def test_python(name: str, variables: Mapping[str, str]) -> None:
    printed = run(sys.executable, str(EXAMPLES / "python" / f"{name}.py"), variables=variables)
    assert re.fullmatch(EXPECTED[name], printed), printed


@pytest.mark.parametrize("name", EXPECTED)
def test_javascript(name: str, javascript: Path, variables: Mapping[str, str]) -> None:
    printed = run(str(node()), str(javascript / f"{name}.mjs"), variables=variables)
    assert re.fullmatch(EXPECTED[name], printed), printed


@pytest.mark.parametrize("name", CURL)
def test_curl(name: str, variables: Mapping[str, str]) -> None:
    assert shutil.which("curl"), "the curl examples need curl: install it"
    printed = run("bash", str(EXAMPLES / "curl" / f"{name}.sh"), variables=variables)
    assert re.fullmatch(CURL[name], printed), printed


def test_a_batch_whose_items_all_failed_shows_its_errors() -> None:
    ended = {"status": "completed", "output_file_id": None, "error_file_id": "file-2"}
    answers = [{"id": "file-1"}, {"id": "batch_1"}, ended, {"custom_id": "question-0"}]
    with serving(*(Answer(answer) for answer in answers)) as server:
        names = {"MILLRACE_URL": server.url, "MILLRACE_KEY": "sk-1", "MILLRACE_MODEL": "m"}
        script = str(EXAMPLES / "curl" / "batch.sh")
        printed = run("bash", script, variables={**os.environ, **names})

    assert printed == 'batch_1 completed\n{"custom_id": "question-0"}'
    assert server.seen[-1] == "GET /v1/files/file-2/content"


def test_every_example_is_run() -> None:
    files = {path.name for path in EXAMPLES.glob("*/*.*") if path.suffix in {".py", ".mjs", ".sh"}}
    assert files == {f"{name}.{end}" for name in EXPECTED for end in ("py", "mjs", "sh")}


def run(*command: str, variables: Mapping[str, str]) -> str:
    """Return what an example printed; it succeeds and prints nothing on stderr."""
    done = subprocess.run(
        command,
        check=False,
        env=dict(variables),
        capture_output=True,
        text=True,
        timeout=EXAMPLE_S_MAX,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return done.stdout
