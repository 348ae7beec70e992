"""Real servers, asked over real HTTP."""

from __future__ import annotations

import http.client
import json
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from flodl.monitor import Dashboard, serve


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body, parse_constant=pytest.fail)  # NaN is no JSON


@dataclass
class Browser:
    """Asks one server; `headers` go with every request."""

    dashboard: Dashboard
    headers: dict[str, str] = field(default_factory=dict)

    def __call__(self, path: str, method: str = "GET", body: object = None, **headers: str) -> Answer:
        """The answer to a request for exactly `path`, as it stands there."""
        with self.connection() as connection:
            connection.putrequest(method, "/", skip_host=True, skip_accept_encoding=True)
            connection._buffer[0] = f"{method} {path} HTTP/1.1".encode()  # http.client refuses strange paths
            data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
            sent = {"Host": f"127.0.0.1:{self.dashboard.port}", "Content-Length": str(len(data)), **self.headers}
            for name, value in {**sent, **{k.replace("_", "-"): v for k, v in headers.items()}}.items():
                connection.putheader(name, value)
            connection.endheaders(data)
            response = connection.getresponse()
            return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())

    def connection(self) -> Any:
        import contextlib

        return contextlib.closing(
            http.client.HTTPConnection(urlsplit(self.dashboard.url).hostname or "", self.dashboard.port, timeout=30)
        )

    def stream(self, query: str, *, cut_after: int | None = None, **headers: str) -> Stream:
        """A stream; the connection breaks after so many bytes of its body."""
        return Stream(self, query, headers, cut_after)

    def token(self) -> str:
        return str(self("/api/session").json["token"])


@dataclass
class Message:
    event: str
    id: str
    data: Any


class Stream:
    """Server-sent events, read one by one from a socket."""

    def __init__(self, browser: Browser, query: str, headers: Mapping[str, str], cut_after: int | None) -> None:
        self._left = sys.maxsize if cut_after is None else cut_after
        self.socket = socket.create_connection(("127.0.0.1", browser.dashboard.port), timeout=30)
        lines = [f"GET /api/stream?{query} HTTP/1.1", f"Host: 127.0.0.1:{browser.dashboard.port}"]
        sent = {**browser.headers, **{k.replace("_", "-"): v for k, v in headers.items()}}
        lines += [f"{name}: {value}" for name, value in sent.items()]
        self.socket.sendall("\r\n".join([*lines, "", ""]).encode())
        self.file = self.socket.makefile("rb")
        self.status = int(self.file.readline().split()[1])
        while self.file.readline().strip():
            pass
        self.comments = 0
        self._messages = self._read()

    def __iter__(self) -> Iterator[Message]:
        return self._messages

    def until(self, event: str) -> Message:
        return next(message for message in self if message.event == event)

    def _read(self) -> Iterator[Message]:
        fields: dict[str, str] = {}
        for line in self._lines():
            if line.startswith(b":"):
                self.comments += 1
            elif line:
                name, _, value = line.partition(b": ")
                fields[name.decode()] = value.decode()
            elif "data" in fields:
                data = json.loads(fields["data"], parse_constant=pytest.fail)
                yield Message(fields["event"], fields["id"], data)
                fields = {}

    def _lines(self) -> Iterator[bytes]:
        """Lines of a body in chunks."""
        buffer = b""
        while size := int(self.file.readline() or b"0", 16):
            buffer += self.file.read(min(size, self._left))
            self._left -= size
            *lines, buffer = buffer.split(b"\n")
            if self._left > 0:
                self.file.readline()
            yield from lines
            if self._left <= 0:
                return

    def close(self) -> None:
        self.file.close()
        self.socket.close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def open_dashboard(runs: Path) -> Iterator[Callable[..., Browser]]:
    """Starts servers; they end with the test."""
    started: list[Dashboard] = []

    def start(**options: Any) -> Browser:
        dashboard = serve(**{"port": 0, "folder": runs, "quiet": True, **options})
        started.append(dashboard)
        return Browser(dashboard)

    yield start
    for dashboard in started:
        dashboard.close()


@pytest.fixture
def browser(open_dashboard: Callable[..., Browser]) -> Browser:
    return open_dashboard()
