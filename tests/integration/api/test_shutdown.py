"""Goal: a stopping process answers requests that outlast the grace period with the envelope."""

from contextlib import ExitStack
from pathlib import Path

from api.settings import ApiSettings
from tests.integration.api.sites import new_site, running
from tests.integration.api.wire import connect, head, read_answer

LENGTH = {"Content_Type": "application/json", "Content_Length": "100"}


def test_a_request_that_outlasts_the_grace_period_gets_an_error(
    database_url: str, tmp_path: Path
) -> None:
    settings = ApiSettings(shutdown_grace_s=1)
    with ExitStack() as stack:
        site = new_site(stack.enter_context(running(settings, database_url, tmp_path)))
        with connect(site) as connection:
            connection.sendall(head(site, "/v1/batches", Expect="100-continue", **LENGTH))
            assert connection.recv(100).startswith(b"HTTP/1.1 100")  # its route waits for the body
            stack.close()
            answer = read_answer(connection)
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert answer.headers["connection"] == "close"
    assert answer.error()["code"] == "server_restarting"
