"""Requests that are sent all the time, to see how an API bears the loss of what it needs."""

import threading
import time
from collections.abc import Mapping
from typing import Any, Final

import httpx

from chaos.clients.history import Recorder

PROBE_S_MAX: Final = 30.0
"""A request that takes longer counts as a hang."""

INTERVAL_S: Final = 0.1
CREATE_INTERVAL_S: Final = 0.5
"""Each creation is a job that has to be run, beside the load that is measured."""


class Prober:
    """Asks each path in a thread of its own and writes down when, how long and what."""

    def __init__(
        self, recorder: Recorder, url: str, key: str, asks: Mapping[str, Mapping[str, Any]]
    ) -> None:
        """`asks` maps a name to what `httpx.Client.request` takes."""
        self._recorder, self._url = recorder, url
        self._headers = {"authorization": f"Bearer {key}"}
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._ask, args=(name, ask), daemon=True)
            for name, ask in asks.items()
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End all threads."""
        self._stop.set()
        for thread in self._threads:
            thread.join(PROBE_S_MAX + 1)

    def _ask(self, name: str, ask: Mapping[str, Any]) -> None:
        with httpx.Client(timeout=PROBE_S_MAX, headers=self._headers) as client:
            creates = ask["method"] == "POST" and ask["url"] == "/v1/batches"
            while not self._stop.wait(CREATE_INTERVAL_S if creates else INTERVAL_S):
                asked_s = time.time()
                content = {**ask, "url": self._url + ask["url"]}
                try:
                    answer = client.request(**content)
                except httpx.HTTPError:
                    self._recorder.record(name, "probe", name, "info", asked_s=asked_s, status=0)
                    continue
                self._recorder.record(
                    name,
                    "probe",
                    name,
                    "ok" if answer.is_success else "fail",
                    asked_s=asked_s,
                    status=answer.status_code,
                    retry_after="retry-after" in answer.headers,
                    enveloped=answer.is_success or is_enveloped(answer),
                    id=made_id(answer) if ask["method"] == "POST" else None,
                )


def made_id(answer: httpx.Response) -> str | None:
    """Return the id of what a request created."""
    return str(answer.json()["id"]) if answer.is_success else None


def is_enveloped(answer: httpx.Response) -> bool:
    """Whether an error comes in the wire's own form."""
    try:
        error = answer.json()["error"]
        return isinstance(error["message"], str) and "type" in error and "code" in error
    except (ValueError, KeyError, TypeError):
        return False
