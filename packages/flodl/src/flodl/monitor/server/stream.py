"""Server-Sent Events: what happens in runs, to a reader that may be slow, go away and come back."""

from __future__ import annotations

import time
from collections.abc import Mapping
from urllib.parse import quote, unquote

import anyio
import anyio.lowlevel
from starlette.types import Receive, Scope, Send

from flodl.errors import StoreError
from flodl.monitor.server.answers import strict_json
from flodl.monitor.server.hub import Hub, Watch

__all__ = ["EventStream", "Position", "parse_token"]

_BEAT_SECONDS = 5.0
_SEND_BYTES = 16_384  # a reader that does not read holds up the next part, so this is about what it costs in memory
_HEADERS = ((b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store"))


class Position:
    """How far a stream has come in a run."""

    def __init__(self, after: int, started_ms: int | None = None) -> None:
        self.after = after
        self.started_ms = started_ms
        """When the run began: tells the run from a later one of the same name. None: not known yet."""
        self.info: object = None
        self.problem: str | None = None


def parse_token(token: str) -> dict[str, Position]:
    """The positions that an id of a message stands for.

    Raises:
        ValueError: it is none of this server's.
    """
    positions = {}
    for part in token.split(",") if token else ():
        name, after, started = part.split(":")
        positions[unquote(name)] = Position(_natural(after), _natural(started) or None)
    return positions


def _natural(digits: str) -> int:
    if not (digits.isascii() and digits.isdigit() and len(digits) < 20):
        raise ValueError(f"{digits!r} is no id")
    return int(digits)


class EventStream:
    """The answer to one request: an ASGI application."""

    def __init__(self, hub: Hub, positions: Mapping[str, Position]) -> None:
        self._hub = hub
        self._positions = positions
        self._written = time.monotonic()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with anyio.create_task_group() as tasks:

            async def until_gone() -> None:
                while (await receive())["type"] != "http.disconnect":
                    pass
                tasks.cancel_scope.cancel()

            tasks.start_soon(until_gone)
            await send({"type": "http.response.start", "status": 200, "headers": list(_HEADERS)})
            self._send = send
            async with self._hub.reader(self._positions) as watches:
                await self._follow(watches)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            tasks.cancel_scope.cancel()

    async def _follow(self, watches: Mapping[str, Watch]) -> None:
        hub = self._hub
        version = hub.list_version
        await self._write(b"retry: 1000\n\n")
        while not hub.closing:
            changes = hub.changes
            more = False
            for name, position in self._positions.items():
                more |= await self._news(watches[name], position)
            if hub.list_version != version:
                version = hub.list_version
                await self._message("runs", b"{}")
            silence = time.monotonic() - self._written
            if silence >= _BEAT_SECONDS:
                await self._write(b": heartbeat\n\n")
            elif not more:
                await hub.change(changes, _BEAT_SECONDS - silence)
        await self._message("bye", b"{}")

    async def _news(self, watch: Watch, position: Position) -> bool:
        """Sends what is new in a run, at most one piece. True when there is more."""
        if position.after > watch.last_id:  # what the reader has is newer than the last look
            await self._hub.look(watch)
        problem = watch.problem
        piece = None
        if problem is None:
            if position.started_ms not in (None, watch.started_ms) or position.after > watch.last_id:
                position.after, position.info = 0, None
                await self._message("reset", strict_json({"run": watch.name}))
            position.started_ms = watch.started_ms
            if position.after < watch.last_id:
                try:
                    piece = await self._hub.piece(watch, position.after)
                except (StoreError, OSError) as error:
                    problem = str(error)
        if problem != position.problem:
            position.problem = problem
            await self._message("problem", strict_json({"run": watch.name, "problem": problem}))
        if piece is not None:
            position.after = piece.last_id
            await self._message("rows", piece.data)
        if watch.info is not None and watch.info is not position.info:
            position.info = watch.info
            await self._message("info", strict_json(watch.info))
        return piece is not None and position.after < watch.last_id

    async def _message(self, event: str, data: bytes) -> None:
        token = ",".join(f"{quote(name, safe='')}:{p.after}:{p.started_ms or 0}" for name, p in self._positions.items())
        message = b"id: %s\nevent: %s\ndata: %s\n\n" % (token.encode(), event.encode(), data)
        for start in range(0, len(message), _SEND_BYTES):
            await self._write(message[start : start + _SEND_BYTES])

    async def _write(self, part: bytes) -> None:
        await self._send({"type": "http.response.body", "body": part, "more_body": True})
        await anyio.lowlevel.checkpoint()  # else a reader that is gone is noticed only after many parts
        self._written = time.monotonic()
