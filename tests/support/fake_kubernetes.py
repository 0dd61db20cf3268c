"""A part of the API server of Kubernetes, in this process, with its optimistic concurrency.

Every write raises the resource version of its object, as does each change by the controllers
(`touch`). A write with another version than the object's gets 409. Writes without a version are
always made, as the real one makes them. What is in `denied` is refused.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

TOKEN = "first"
NAMESPACE = "models"
_STATUSES = {409: "Conflict", 403: "Forbidden", 404: "NotFound", 401: "Unauthorized"}


def _failure(status: int) -> web.Response:
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": status}
    return web.json_response({**body, "reason": _STATUSES.get(status, "")}, status=status)


def _merge(target: dict[str, Any], patch: dict[str, Any]) -> None:
    """Apply a JSON merge patch (RFC 7396)."""
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, dict):
            child = target.setdefault(key, {})
            _merge(child, value)
        else:
            target[key] = value


def _selected(request: web.Request, objects: dict[str, dict[str, Any]]) -> list[Any]:
    """Return the objects that have the name or the label of the query."""
    if "fieldSelector" in request.query:
        field, _, name = request.query["fieldSelector"].partition("=")
        assert field == "metadata.name"
        return [one for known, one in objects.items() if known == name]
    key, _, value = request.query["labelSelector"].partition("=")
    return [one for one in objects.values() if one["metadata"]["labels"].get(key) == value]


class FakeKubernetes:
    """Objects of one namespace, and the calls that were made."""

    def __init__(self) -> None:
        self.deployments: dict[str, dict[str, Any]] = {}
        self.pods: dict[str, dict[str, Any]] = {}
        self.scalers: list[dict[str, Any]] = []
        self.scaled_objects: list[dict[str, Any]] | None = None  # None: KEDA is not installed
        self.tokens = {TOKEN}
        self.denied: set[tuple[str, str]] = set()  # verb and resource
        self.calls: list[tuple[str, str]] = []
        self.scale_writes = 0
        self.page_items = 500
        self.before_write: Callable[[str], None] | None = None  # gets the resource
        self.fault: str | None = None
        self.released = asyncio.Event()  # ends calls that hang
        self._version = 100

    def add_deployment(self, name: str, labels: dict[str, str], replicas: int = 0) -> None:
        metadata = {"name": name, "namespace": NAMESPACE, "labels": labels}
        self.deployments[name] = {"metadata": metadata, "spec": {"replicas": replicas}}
        self.touch(self.deployments[name])

    def touch(self, found: dict[str, Any]) -> None:
        """Raise the version of an object, as any change of it does."""
        self._version += 1
        found["metadata"]["resourceVersion"] = str(self._version)

    @asynccontextmanager
    async def serve(self, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
        app = web.Application(middlewares=[self._guard])
        apps = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
        app.router.add_get(apps, self._list_deployments)
        app.router.add_patch(apps + "/{name}", self._patch_deployment)
        app.router.add_put(apps + "/{name}/scale", self._put_scale)
        app.router.add_get(f"/api/v1/namespaces/{NAMESPACE}/pods", self._list_pods)
        app.router.add_patch(f"/api/v1/namespaces/{NAMESPACE}/pods/{{name}}", self._patch_pod)
        app.router.add_get(
            f"/apis/autoscaling/v2/namespaces/{NAMESPACE}/horizontalpodautoscalers",
            self._list_scalers,
        )
        app.router.add_get(
            f"/apis/keda.sh/v1alpha1/namespaces/{NAMESPACE}/scaledobjects", self._list_scaled
        )
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
        await site.start()
        try:
            yield f"http{'s' * (tls is not None)}://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            self.released.set()
            await runner.cleanup()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        resource = "/".join(request.path.split(f"/namespaces/{NAMESPACE}/")[1].split("/")[::2])
        self.calls.append((request.method, resource))
        if request.headers.get("authorization") not in {f"Bearer {t}" for t in self.tokens}:
            return _failure(401)
        if (request.method, resource) in self.denied or self.fault == "denied":
            return _failure(403)
        if self.fault == "hang":
            await self.released.wait()
        if self.fault == "conflict" and request.method != "GET":
            return _failure(409)
        if self.fault == "absurd":
            item = {"metadata": {"name": "x", "resourceVersion": "1"}, "spec": {"replicas": -5}}
            return web.json_response({"items": [item]})
        if request.method != "GET" and self.before_write is not None:
            self.before_write(resource)
        answer: web.StreamResponse = await handler(request)
        return answer

    def _page(self, request: web.Request, items: list[Any]) -> web.Response:
        start = int(request.query.get("continue", "0"))
        end = start + min(self.page_items, int(request.query.get("limit", "500")))
        metadata = {"continue": str(end)} if end < len(items) else {}
        return web.json_response({"items": items[start:end], "metadata": metadata})

    async def _list_deployments(self, request: web.Request) -> web.Response:
        return self._page(request, _selected(request, self.deployments))

    async def _list_pods(self, request: web.Request) -> web.Response:
        return self._page(request, _selected(request, self.pods))

    async def _list_scalers(self, request: web.Request) -> web.Response:
        return self._page(request, self.scalers)

    async def _list_scaled(self, request: web.Request) -> web.Response:
        if self.scaled_objects is None:
            return _failure(404)
        return self._page(request, self.scaled_objects)

    async def _patch_deployment(self, request: web.Request) -> web.Response:
        assert request.content_type == "application/merge-patch+json"
        return await self._patch(request, self.deployments)

    async def _patch_pod(self, request: web.Request) -> web.Response:
        return await self._patch(request, self.pods)

    async def _patch(
        self, request: web.Request, objects: dict[str, dict[str, Any]]
    ) -> web.Response:
        found, patch = objects.get(request.match_info["name"]), await request.json()
        if found is None:
            return _failure(404)
        version = patch.get("metadata", {}).pop("resourceVersion", None)
        if version not in {None, found["metadata"]["resourceVersion"]}:
            return _failure(409)
        _merge(found, patch)
        self.touch(found)
        return web.json_response(found)

    async def _put_scale(self, request: web.Request) -> web.Response:
        found, scale = self.deployments.get(request.match_info["name"]), await request.json()
        if found is None:
            return _failure(404)
        version = scale["metadata"].get("resourceVersion")
        if version not in {None, found["metadata"]["resourceVersion"]}:
            return _failure(409)
        found["spec"]["replicas"] = scale["spec"]["replicas"]
        self.scale_writes += 1
        self.touch(found)
        # The real one leaves out fields that are 0.
        spec = {"replicas": found["spec"]["replicas"]} if found["spec"]["replicas"] else {}
        return web.json_response({"kind": "Scale", "metadata": found["metadata"], "spec": spec})
