"""The server's routes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from flodl.errors import StoreError
from flodl.monitor.control import request as ask_run
from flodl.monitor.server import answers
from flodl.monitor.server.folder import RunFolder, UnknownRun
from flodl.monitor.server.hub import Hub
from flodl.monitor.server.memory import Memory, read_last_id
from flodl.monitor.server.security import Guard, Policy
from flodl.monitor.server.static import static_file
from flodl.monitor.server.stream import EventStream, Position, parse_token
from flodl.monitor.store import RunView

__all__ = ["make_app"]

_MAX_STREAMS = 256
_MAX_SERIES = 200
_MAX_WIDTH = 10_000
_MAX_EVENTS = 10_000
_MAX_BODY_BYTES = 4096

Answer = dict[str, Any]


class _BadRequest(Exception):
    pass


class Json(Response):
    media_type = "application/json"

    def __init__(self, content: Any, status: int = 200) -> None:
        super().__init__(answers.strict_json(content), status, {"Cache-Control": "no-store"})


def make_app(folder: RunFolder, policy: Policy) -> tuple[Starlette, Hub]:
    """The application, and its hub, which is to be closed before the server waits for its connections to end."""
    hub = Hub(folder)
    memory = Memory()

    def of_run(answer: Callable[[RunView, Request], Answer]) -> Callable[[Request], Awaitable[Response]]:
        def read(request: Request) -> Response:
            with RunView(folder.run(request.path_params["run"])) as view:
                return Json(answer(view, request))

        async def respond(request: Request) -> Response:
            return await hub.in_thread(read, request)

        return respond

    def series(view: RunView, request: Request) -> Answer:
        wanted = [_whole(text) for text in request.query_params.getlist("s")]
        if len(wanted) > _MAX_SERIES:
            raise _BadRequest(f"at most {_MAX_SERIES} series at once")
        x = request.query_params.get("x", "step")
        if x not in ("step", "time"):
            raise _BadRequest("x: step or time")
        rank = request.query_params.get("rank")
        return answers.series(
            view, memory, wanted, x=x, rank=None if rank is None else _whole(rank), **_window(request)
        )

    def timeline(view: RunView, request: Request) -> Answer:
        return answers.timeline(view, memory, **_window(request))

    def epochs(view: RunView, request: Request) -> Answer:
        since = _query_whole(request, "since", 0)
        with view.snapshot():
            return {"epochs": answers.epochs(view, since=since), "last_id": read_last_id(view)}

    def events(view: RunView, request: Request) -> Answer:
        limit = _query_whole(request, "limit", 1000, 1, _MAX_EVENTS)
        newest = request.query_params.get("tail") == "1"
        with view.snapshot():
            found = answers.events(
                view,
                since=_query_whole(request, "since", 0),
                kinds=request.query_params.getlist("kind")[:100],
                without=request.query_params.getlist("without")[:100],
                limit=limit + 1,
                newest=newest,
            )
            last_id = read_last_id(view)
        more = len(found) > limit
        return {"events": found[-limit:] if newest else found[:limit], "more": more, "last_id": last_id}

    def resources(view: RunView, request: Request) -> Answer:
        since, width = _query_whole(request, "since", 0), _query_whole(request, "width", 800, 1, _MAX_WIDTH)
        with view.snapshot():
            return {**answers.resources(view, since=since, width=width), "last_id": read_last_id(view)}

    def read_artifact(request: Request) -> Response:
        name = request.query_params.get("name", "")
        with RunView(folder.run(request.path_params["run"])) as view:
            if name not in view.artifacts():
                raise UnknownRun(f"this run has no artifact {name[:200]!r}")
            return PlainTextResponse(view.artifact(name), headers={"Cache-Control": "no-store"})

    async def artifact(request: Request) -> Response:
        return await hub.in_thread(read_artifact, request)

    async def runs(request: Request) -> Response:
        return Json({"runs": await hub.in_thread(folder.rows)})

    async def session(request: Request) -> Response:
        return Json({"token_needed": policy.token_needed, "token": None if policy.token_needed else policy.token})

    async def control(request: Request) -> Response:
        action = _action(await _body(request))
        run = await hub.in_thread(folder.run, request.path_params["run"])
        client = request.client.host if request.client else "?"
        try:
            identity = await hub.in_thread(_ask, run, action, f"dashboard, {client}")
        except _NotRunning as error:
            return Json({"error": str(error)}, 409)
        return Json({"id": identity})

    async def stream(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        positions = _positions(request)
        for name in positions:
            await hub.in_thread(folder.run, name)
        if hub.readers >= _MAX_STREAMS:
            await Json({"error": f"more than {_MAX_STREAMS} open streams"}, 503)(scope, receive, send)
            return
        await EventStream(hub, positions)(scope, receive, send)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        looking = asyncio.create_task(hub.run())
        try:
            yield
        finally:
            hub.close()
            await looking

    details: list[tuple[str, Callable[[RunView, Request], Answer]]] = [
        ("", lambda view, _: answers.run_detail(view)),
        ("/series", series),
        ("/epochs", epochs),
        ("/events", events),
        ("/timeline", timeline),
        ("/resources", resources),
    ]
    routes: Sequence[BaseRoute] = [
        Route("/api/session", session),
        Route("/api/runs", runs),
        *(Route(f"/api/runs/{{run}}{end}", of_run(answer)) for end, answer in details),
        Route("/api/runs/{run}/artifact", artifact),
        Route("/api/runs/{run}/control", control, methods=["POST"]),
        Route("/api/stream", _Application(stream)),
        Route("/{name:path}", static_file),
    ]
    app = Starlette(
        routes=routes,
        lifespan=lifespan,
        middleware=[Middleware(Guard, policy=policy)],
        exception_handlers={
            UnknownRun: _answers(404),
            _BadRequest: _answers(400),
            StoreError: _answers(503),
            OSError: _answers(503),
        },
    )
    return app, hub


class _Application:
    """What makes a Route take an ASGI application instead of a function of a request."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


class _NotRunning(Exception):
    pass


def _ask(run: Path, action: Any, origin: str) -> int:
    with RunView(run) as view:
        state = view.info().state
    if state != "running":
        raise _NotRunning(f"the run is {state}: there is nothing to {action}")
    return ask_run(run, action, origin=f"{origin}, server {socket.gethostname()}")


def _answers(status: int) -> Callable[[Request, Exception], Response]:
    return lambda _, error: Json({"error": str(error)}, status)


async def _body(request: Request) -> bytes:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _MAX_BODY_BYTES:
            raise _BadRequest("too long")
    return body


def _action(body: bytes) -> str:
    try:
        action = json.loads(body)["action"]
    except (ValueError, TypeError, KeyError) as error:
        raise _BadRequest('expected {"action": "stop"} or {"action": "save"}') from error
    if action not in ("stop", "save"):
        raise _BadRequest("action: stop or save")
    return str(action)


def _positions(request: Request) -> dict[str, Position]:
    positions = {}
    for text in request.query_params.getlist("run"):
        name, _, after = text.rpartition(":")
        positions[name] = Position(_whole(after, 0))
    try:
        known = parse_token(request.headers.get("last-event-id", ""))
    except ValueError as error:
        raise _BadRequest(f"Last-Event-ID: {error}") from error
    positions.update((name, position) for name, position in known.items() if name in positions)
    return positions


def _window(request: Request) -> dict[str, Any]:
    low, high = (_query_number(request, name) for name in ("from", "to"))
    if low is not None and high is not None and low > high:
        raise _BadRequest("from is greater than to")
    return {"low": low, "high": high, "width": _query_whole(request, "width", 800, 1, _MAX_WIDTH)}


def _query_number(request: Request, name: str) -> float | None:
    text = request.query_params.get(name)
    if not text:
        return None
    try:
        value = float(text)
    except ValueError as error:
        raise _BadRequest(f"{name}: a number") from error
    if not math.isfinite(value):
        raise _BadRequest(f"{name}: a finite number")
    return value


def _query_whole(request: Request, name: str, default: int, least: int = 0, most: int = 2**62) -> int:
    text = request.query_params.get(name)
    return default if not text else _whole(text, least, most)


def _whole(text: str, least: int = -(2**62), most: int = 2**62) -> int:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 20 and least <= int(text) <= most):
        raise _BadRequest(f"{text[:40]!r} is no whole number from {least} to {most}")
    return int(text)
