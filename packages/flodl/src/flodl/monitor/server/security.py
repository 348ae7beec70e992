"""Who may ask, and what may be asked for: checked before anything else looks at a request."""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from flodl.monitor.server.hosts import address

__all__ = ["TOKEN_HEADER", "Guard", "Policy"]

TOKEN_HEADER = b"x-flodl-token"
_CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self';"
    " font-src 'self'; worker-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = (
    (b"content-security-policy", _CONTENT_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
_HOST = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[^:\[\]/@\s]+)(?::\d{1,5})?", re.IGNORECASE)
_METHODS = ("GET", "HEAD", "POST")


@dataclass(frozen=True, kw_only=True)
class Policy:
    token: str
    token_needed: bool
    """Every call of the API needs the token, not only those that change something."""
    hosts: frozenset[str]
    """Names, in lower case, by which this server may be called."""
    any_address: bool
    """It may be called by any IP address too: no name can be made to lead there by somebody else."""

    def knows(self, token: str | bytes | None) -> bool:
        """Whether `token` is the right one; takes as long for a wrong one."""
        given = token.encode("utf-8", "replace") if isinstance(token, str) else token or b""
        return hmac.compare_digest(given, self.token.encode())

    def allows_host(self, header: str) -> bool:
        match = _HOST.fullmatch(header)
        if match is None:
            return False
        name = match["name"].strip("[]").lower().rstrip(".")
        if name in self.hosts:
            return True
        return self.any_address and address(name) is not None


class Guard:
    """Middleware: refuses, and adds the headers that tell a browser to be strict."""

    def __init__(self, app: ASGIApp, policy: Policy) -> None:
        self._app = app
        self._policy = policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *_HEADERS]
            await send(message)

        refusal = self._refusal(scope)
        if refusal is None:
            await self._app(scope, receive, send_with_headers)
        else:
            status, text = refusal
            await JSONResponse({"error": text}, status)(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        hosts = [value.decode("latin-1") for name, value in headers if name == b"host"]
        if len(hosts) != 1 or not self._policy.allows_host(hosts[0]):
            shown = ascii(hosts[0][:100]) if hosts else "none"
            return (
                400,
                f"this server is not known as {shown}: start it with --allowed-host NAME to call it by another name",
            )
        if scope["method"] not in _METHODS:
            return 405, "only GET and POST"
        if not _is_plain(scope.get("raw_path", b"")):
            return 400, "not a path of this server"
        if not scope["path"].startswith("/api/"):
            return None  # the page itself holds nothing secret
        if _values(headers, b"sec-fetch-site") - {b"same-origin", b"none"}:
            return 403, "not from another site"
        if scope["path"] == "/api/session":
            return None
        if (self._policy.token_needed or scope["method"] == "POST") and not self._has_token(headers):
            return 401, "the token is missing or wrong: open the address that was printed when the server started"
        return None

    def _has_token(self, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        given = _values(headers, TOKEN_HEADER)
        return len(given) == 1 and self._policy.knows(given.pop())


def _values(headers: Iterable[tuple[bytes, bytes]], wanted: bytes) -> set[bytes]:
    return {value for name, value in headers if name == wanted}


def _is_plain(raw_path: bytes) -> bool:
    """Without what could be read as another path: dots as a segment, separators or NUL as escapes."""
    path = raw_path.partition(b"?")[0]
    if not path.startswith(b"/") or b"//" in path or b"#" in path:
        return False
    segments = [unquote_to_bytes(segment) for segment in path.split(b"/")]
    return not any(segment in (b".", b"..") or any(byte in b"/\\\0" for byte in segment) for segment in segments)
