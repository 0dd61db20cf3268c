"""Goal: the batch example of Python prints one line an answer, whatever the answer holds."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.unit.cli.scripted_server import Answer, serving

EXAMPLE = Path(__file__).parents[3] / "examples/python/batch.py"
SEPARATORS = "a\u2028b\u2029c\x85d"


def test_an_answer_may_hold_line_separators_of_unicode() -> None:
    body = {"choices": [{"message": {"content": SEPARATORS}}]}
    line = {"custom_id": "question-0", "response": {"body": body}}
    content = json.dumps(line, ensure_ascii=False).encode() + b"\n"
    ended = {"id": "batch_1", "status": "completed", "output_file_id": "file-2"}
    with serving(Answer({"id": "file-1"}), Answer(ended), Answer(content)) as server:
        names = {"MILLRACE_URL": server.url, "MILLRACE_KEY": "sk-1", "MILLRACE_MODEL": "m"}
        done = subprocess.run(
            [sys.executable, str(EXAMPLE)],
            check=False,
            capture_output=True,
            env={**os.environ, **names, "PYTHONIOENCODING": "utf-8"},
            timeout=60,
        )

    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode() == f"batch_1 completed\nquestion-0: {SEPARATORS}\n"
