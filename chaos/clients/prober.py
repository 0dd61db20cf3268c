"""Probes: requests sent at a steady pace, to observe the API during an outage."""

import threading
import time
from collections.abc import Mapping
from typing import Any, Final

import httpx

from chaos.clients.history import Recorder

PROBE_S_MAX: Final = 30.0
"""Timeout of a request; a slower one counts as a hang."""

INTERVAL_S: Final = 0.1
CREATE_INTERVAL_S: Final = 0.5
"""Each created job runs next to the measured load, so creations are rarer."""


class Prober:
    """Sends each request in a thread of its own and records time, duration and response."""

    def __init__(
        self, recorder: Recorder, url: str, key: str, requests: Mapping[str, Mapping[str, Any]]
    ) -> None:
        """Start the threads; `requests` maps a name to the arguments of `httpx.Client.request`."""
        self._recorder, self._url = recorder, url
        self._headers = {"authorization": f"Bearer {key}"}
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._probe, args=(name, request), daemon=True)
            for name, request in requests.items()
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop all threads."""
        self._stop.set()
        for thread in self._threads:
            thread.join(PROBE_S_MAX + 1)

    def _probe(self, name: str, request: Mapping[str, Any]) -> None:
        with httpx.Client(timeout=PROBE_S_MAX, headers=self._headers) as client:
            creates = request["method"] == "POST" and request["url"] == "/v1/batches"
            while not self._stop.wait(CREATE_INTERVAL_S if creates else INTERVAL_S):
                asked_s = time.time()
                content = {**request, "url": self._url + request["url"]}
                try:
                    response = client.request(**content)
                except httpx.HTTPError:
                    self._recorder.record(name, "probe", name, "info", asked_s=asked_s, status=0)
                    continue
                self._recorder.record(
                    name,
                    "probe",
                    name,
                    "ok" if response.is_success else "fail",
                    asked_s=asked_s,
                    status=response.status_code,
                    retry_after="retry-after" in response.headers,
                    enveloped=response.is_success or is_error_envelope(response),
                    id=_created_id(response) if request["method"] == "POST" else None,
                )


def _created_id(response: httpx.Response) -> str | None:
    return str(response.json()["id"]) if response.is_success else None


def is_error_envelope(response: httpx.Response) -> bool:
    """Return whether an error response has the API's error format."""
    try:
        error = response.json()["error"]
        return isinstance(error["message"], str) and "type" in error and "code" in error
    except (ValueError, KeyError, TypeError):
        return False
