"""One file from a server: resumed where it broke off, tried again with growing pauses, checked, and only then given its name."""

from __future__ import annotations

import errno
import hashlib
import http.client
import json
import os
import shutil
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from email.message import Message
from pathlib import Path
from typing import Any, NamedTuple

from flodl_cli.libtorch.errors import DownloadError, HashError, LibtorchError
from flodl_cli.libtorch.progress import Progress, size_text

__all__ = ["Forbidden", "Transport", "fetch", "sha256_of", "shown_url"]

_BLOCK = 1 << 18
_PASSING = (408, 425, 429, 500, 502, 503, 504)  # HTTP statuses that a later try may not see


class Forbidden(DownloadError):
    """The server wants to know who asks (401, 403, 407)."""


class Untrusted(DownloadError):
    """The server's certificate is not signed by anybody that is known here."""


class Transport(NamedTuple):
    """How servers are reached."""

    timeout_s: float = 30.0  # without a single byte
    retries: int = 5
    pause_s: float = 0.5  # before the first retry; doubled before each further one, to at most 30
    cert: str | None = None  # file of certificates of authorities
    proxy: str | None = None

    def opener(self) -> urllib.request.OpenerDirector:
        handlers: list[urllib.request.BaseHandler] = [_SameScheme()]
        handlers.append(urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=self.cert)))
        if self.proxy:
            handlers.append(urllib.request.ProxyHandler({"http": self.proxy, "https": self.proxy}))
        return urllib.request.build_opener(*handlers)


class _SameScheme(urllib.request.HTTPRedirectHandler):
    """https stays https: a redirect to another scheme is refused, as curl and pip do for secure origins."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        old, new = (urllib.parse.urlsplit(u).scheme for u in (req.full_url, newurl))
        if new != old and (old, new) != ("http", "https"):
            raise DownloadError(_refused_redirect(req.full_url, new))
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _refused_redirect(url: str, scheme: str) -> str:
    return f"{shown_url(url)} redirects to {scheme}://: refused"


def shown_url(url: str) -> str:
    """A URL without what is secret in it."""
    parts = urllib.parse.urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urllib.parse.urlunsplit((parts.scheme, host, parts.path, "", ""))


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def fetch(url: str, folder: Path, sha256: str | None, progress: Progress, transport: Transport) -> tuple[Path, str]:
    """Downloads `url` into `folder`; returns the file and its SHA-256.

    What is there of it already is asked for no more (Range with If-Range; the hash has the last word). A download that
    breaks off for good stays as a part, which the next call resumes. One that turns out to be something else is removed.

    Raises: DownloadError, HashError.
    """
    name = os.path.basename(urllib.parse.unquote(urllib.parse.urlsplit(url).path)) or "download"
    part = _Part(folder, url, name)
    for attempt in range(transport.retries + 1):
        try:
            part.read_on(url, sha256 is not None, progress, transport)
            break
        except (OSError, http.client.HTTPException, _BrokenOff) as error:
            reason, wait = _judged(error, url, part, transport)
        if attempt == transport.retries:
            kept = f"; {size_text(part.size)} are kept, the same call resumes" if part.size else ""
            raise DownloadError(f"{reason} (tried {attempt + 1} times){kept}")
        pause = wait if wait is not None else min(transport.pause_s * 2**attempt, 30.0)
        progress.say(f"{reason}; again in {pause:g} s")
        time.sleep(pause)
    return part.finished(sha256)


_NETWORK = (errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.ENETUNREACH, errno.ENETDOWN, errno.ENETRESET, errno.ENOTCONN)
"""What reading from a connection raises as a bare OSError."""


class _BrokenOff(Exception):
    """Fewer bytes came than were announced."""


def _judged(error: Exception, url: str, part: _Part, transport: Transport) -> tuple[str, float | None]:
    """What to tell, and how many seconds the server asks to wait, if it does. Raises where another try is of no use."""
    if isinstance(error, urllib.error.HTTPError):
        error.close()
        reason = _status_text(url, error.code)
        if 300 <= error.code < 400:  # urllib itself follows to none but http, https and ftp
            scheme = urllib.parse.urlsplit(error.headers.get("Location", "")).scheme
            raise DownloadError(_refused_redirect(url, scheme)) from None
        if error.code in (401, 403, 407):
            raise Forbidden(reason) from None
        if error.code == 416:  # the part is longer than the file: another file now
            part.drop()
        elif error.code not in _PASSING:
            raise DownloadError(reason) from None
        return reason, _asked_pause(error.headers)
    network = (urllib.error.URLError, TimeoutError, ConnectionError, ssl.SSLError)
    of_connection = isinstance(error, network) or (isinstance(error, OSError) and error.errno in _NETWORK)
    if isinstance(error, OSError) and not of_connection:  # of the file
        part.drop()
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise LibtorchError(f"{part.path.parent} is full: nothing was installed") from None
        raise error
    reason = _reason(url, error, transport)
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, ssl.SSLCertVerificationError):
        raise Untrusted(reason) from None
    if isinstance(cause, http.client.InvalidURL) or "unknown url type" in str(cause):
        raise DownloadError(reason) from None
    return reason, None


def _status_text(url: str, status: int) -> str:
    text = http.client.responses.get(status, "")
    hint = "; is there such a version? --version names another one" if status == 404 else ""
    return f"{shown_url(url)}: the server says {status} {text}{hint}"


def _reason(url: str, error: Exception, transport: Transport) -> str:
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, TimeoutError):
        return f"{shown_url(url)}: no answer for {transport.timeout_s:g} s"
    text = (cause.strerror or str(cause)) if isinstance(cause, OSError) else str(cause)
    return f"{shown_url(url)}: {text or type(cause).__name__}"


def _asked_pause(headers: Message) -> float | None:
    """The seconds of Retry-After, at most 60; None where there are none."""
    text = headers.get("Retry-After") or ""
    return min(float(text), 60.0) if text.isdigit() else None


class _Part:
    """The first bytes of a file, and which file that was."""

    def __init__(self, folder: Path, url: str, name: str) -> None:
        key = hashlib.sha256(shown_url(url).encode()).hexdigest()[:12]
        self.path = folder / f"{key}-{name}"
        self.about = folder / f"{key}.json"

    @property
    def size(self) -> int:
        return self.path.stat().st_size if self.path.is_file() else 0

    def drop(self) -> None:
        self.path.unlink(missing_ok=True)
        self.about.unlink(missing_ok=True)

    def known(self) -> dict[str, Any]:
        try:
            value = json.loads(self.about.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return value if isinstance(value, dict) else {}

    def read_on(self, url: str, hashed: bool, progress: Progress, transport: Transport) -> None:
        """Asks for what is missing and appends it. Without a mark of the server or a hash, the rest could be another file's."""
        known = self.known()
        have = self.size if known.get("mark") or (hashed and known) else 0
        if have and have == known.get("total"):
            return
        request = urllib.request.Request(url, headers={"User-Agent": "fdl", "Accept-Encoding": "identity"})
        if have:
            request.add_header("Range", f"bytes={have}-")
            if known["mark"]:
                request.add_header("If-Range", known["mark"])
        with transport.opener().open(request, timeout=transport.timeout_s) as answer:
            have, total = _where(answer, have)
            mark = answer.headers.get("ETag") or answer.headers.get("Last-Modified")
            self._check_space(total, have)
            mark = None if mark and mark.startswith("W/") else mark  # a weak mark does not promise the same bytes
            self.about.write_text(json.dumps({"mark": mark, "total": total}), encoding="utf-8")
            progress.start("downloading", have, total)
            with self.path.open("r+b" if have else "wb") as file:
                file.seek(have)
                file.truncate()
                while block := answer.read1(_BLOCK):
                    file.write(block)
                    progress.advance(len(block))
        if total is not None and self.size < total:
            raise _BrokenOff(f"the connection broke off at {size_text(self.size)} of {size_text(total)}")

    def _check_space(self, total: int | None, have: int) -> None:
        free = shutil.disk_usage(self.path.parent).free
        if total is not None and total - have > free:
            self.drop()
            raise LibtorchError(
                f"{self.path.parent} has {size_text(free)} left, the download needs {size_text(total - have)}: "
                "nothing was installed"
            )

    def finished(self, sha256: str | None) -> tuple[Path, str]:
        found = sha256_of(self.path)
        if sha256 is not None and found != sha256:
            self.drop()
            raise HashError(f"{self.path.name.partition('-')[2]} has the SHA-256 {found}, expected {sha256}: removed")
        return self.path, found


def _where(answer: Any, have: int) -> tuple[int, int | None]:
    """At which byte the answer begins, and how long the whole file is. A server that knows no Range begins at 0."""
    length = answer.headers.get("Content-Length")
    if answer.status == 206:
        unit, _, place = answer.headers.get("Content-Range", "").partition(" ")
        first, total = place.partition("-")[0], place.rpartition("/")[2]
        if unit == "bytes" and first == str(have) and total.isdigit():
            return have, int(total)
        raise DownloadError(f"the server answers a Range with '{answer.headers.get('Content-Range')}'")
    return 0, int(length) if length and length.isdigit() else None
