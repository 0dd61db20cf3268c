"""Goal: an upgrade of uvicorn does not silently break the use of its private parts."""

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from api.http.uvicorn_server import UVICORN_VERSION, HttpProtocol


def test_the_private_parts_were_checked_for_the_installed_version() -> None:
    """After an upgrade: read the parts named at UVICORN_VERSION again, then change it."""
    assert uvicorn.__version__ == UVICORN_VERSION


def test_overridden_methods_exist() -> None:
    overridden = {"_start_asgi_task", "on_response_complete", "timeout_keep_alive_handler"}
    assert overridden | {"send_400_response"} <= vars(HttpProtocol).keys()
    for name in (*overridden, "send_400_response", "_unset_keepalive_if_required"):
        assert callable(getattr(HttpToolsProtocol, name))
    assert callable(RequestResponseCycle.send)
