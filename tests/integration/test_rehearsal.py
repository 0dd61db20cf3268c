"""Goal: the AOT cache fits this Java and these jars; a failed warm-up run leaves nothing."""

import os
import subprocess
from pathlib import Path

import pytest

from cli.stack import rehearsal
from cli.stack.data_folder import cache_dir
from cli.stack.errors import StackTimeoutError
from cli.stack.jars import cached_jars
from cli.stack.services.embedded_kafka import aot_cache_path, java_command


def test_java_accepts_the_aot_cache(tmp_path: Path) -> None:
    cache = cache_dir(os.environ)
    rehearsal.ensure_aot_cache(cache)
    require_cache = ("-XX:AOTMode=on",)  # ends the program when the cache does not fit
    command = java_command(
        cached_jars(cache), tmp_path, "kafka.Kafka", "--version", options=require_cache
    )
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.split()[:1]) == (0, ["4.3.1"]), done.stderr


def test_failed_warm_up_run_is_logged_and_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    jars = cached_jars(cache_dir(os.environ))
    (tmp_path / jars.name).symlink_to(jars)

    def fail(*_: object) -> None:
        raise StackTimeoutError("too slow")

    monkeypatch.setattr(rehearsal, "_run_broker", fail)
    rehearsal.ensure_aot_cache(tmp_path)
    assert "too slow" in caplog.text
    assert not aot_cache_path(tmp_path / jars.name).exists()
    assert {path.name for path in tmp_path.iterdir()} <= {
        jars.name,
        "kafka-jars.lock",
        "kafka-rehearsal.lock",
    }
