"""The server's process. Its settings come as JSON on standard input, so that no token is on a command line."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import uvicorn

from flodl.monitor.server.app import make_app
from flodl.monitor.server.folder import RunFolder
from flodl.monitor.server.hub import Hub
from flodl.monitor.server.security import Policy

__all__ = ["main"]

_MAX_CONNECTIONS = 512
_PARENT_SECONDS = 0.5


class _Server(uvicorn.Server):
    """Ends its streams before it waits for connections to end; ends when the process that started it does."""

    def __init__(self, config: uvicorn.Config, hub: Hub, parent: int | None) -> None:
        super().__init__(config)
        self._hub = hub
        self._parent = parent

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._parent is not None:
            self._following = asyncio.create_task(self._follow(self._parent))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._hub.close()
        await super().shutdown(sockets)

    async def _follow(self, parent: int) -> None:
        while os.getppid() == parent:
            await asyncio.sleep(_PARENT_SECONDS)
        self.should_exit = True


def main(settings: Mapping[str, Any]) -> None:
    policy = Policy(
        token=settings["token"],
        token_needed=settings["token_needed"],
        hosts=frozenset(settings["hosts"]),
        any_address=settings["any_address"],
    )
    app, hub = make_app(RunFolder(Path(settings["folder"])), policy)
    config = uvicorn.Config(
        app,
        loop="asyncio",
        http="h11",
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=_MAX_CONNECTIONS,
        timeout_graceful_shutdown=2,
    )
    with socket.socket(fileno=settings["socket"]) as listening:
        _Server(config, hub, settings["parent"]).run([listening])


if __name__ == "__main__":
    main(json.load(sys.stdin))
