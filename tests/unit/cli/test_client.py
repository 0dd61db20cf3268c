"""Goal: an address that is none is wrong usage, before anything is sent."""

import pytest
from typer.testing import CliRunner

from cli.client import api_base
from cli.exits import ExitCode
from cli.main import app


@pytest.mark.parametrize("url", ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"])
def test_a_base_url_ends_with_the_version(url: str) -> None:
    assert api_base(url) == "http://h:1/v1"


@pytest.mark.parametrize("url", ["foo", "", "http://", "https:///x", "ftp://h"])
def test_an_address_that_is_none_is_wrong_usage(url: str) -> None:
    done = CliRunner().invoke(app, ["batch", "list", "--url", url, "--key", "sk-none"])

    assert done.exit_code == ExitCode.USAGE
    assert "give http://HOST:PORT" in done.stderr
