"""Fetch a file over HTTP, and keep it so that nobody ever sees half of it."""

from __future__ import annotations

import http.client
import os
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

from flodl.errors import DataError

__all__ = ["download", "keep"]

_CHUNK_BYTES = 256 * 1024
_ATTEMPTS = 3


def download(url: str, *, timeout_s: float = 30.0) -> bytes:
    """The body of `url`. A progress bar is shown on a terminal; a connection that breaks off is tried again, twice.

    `timeout_s`: the longest silence of the server. Raises DataError with the reason.
    """
    reason = ""
    for _ in range(_ATTEMPTS):
        try:
            return _fetch(url, timeout_s)
        except urllib.error.HTTPError as error:
            error.close()
            raise DataError(f"{url}: the server answered {error.code} {error.reason}") from None
        except urllib.error.URLError as error:
            raise DataError(f"{url}: no connection: {error.reason}") from None
        except (ConnectionError, http.client.HTTPException, TimeoutError) as error:
            reason = str(error) or type(error).__name__
        except (OSError, ValueError) as error:
            raise DataError(f"{url}: {error}") from None
    raise DataError(f"{url}: {reason} ({_ATTEMPTS} attempts)")


def _fetch(url: str, timeout_s: float) -> bytes:
    from rich.console import Console  # 90 ms that only a download needs
    from rich.progress import Progress

    body = bytearray()
    with (
        urllib.request.urlopen(url, timeout=timeout_s) as response,
        Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress,
    ):
        announced = response.headers.get("Content-Length")
        total = int(announced) if announced is not None else None
        task = progress.add_task(url.rsplit("/", 1)[-1], total=total)
        while chunk := response.read1(_CHUNK_BYTES):  # what has arrived: read() would wait for a full chunk
            body += chunk
            progress.update(task, completed=len(body))
    if total is not None and len(body) < total:  # reading ends quietly where the connection does
        raise ConnectionError(f"the connection broke off after {len(body)} of {total} bytes")
    return bytes(body)


def keep(content: bytes, path: Path) -> None:
    """Write `path` through a temporary file beside it, on disk before it gets its name; removed on any exception."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
