"""Starting the dashboard's server as a process of its own."""

from __future__ import annotations

import atexit
import contextlib
import errno
import json
import os
import re
import secrets
import socket
import subprocess
import sys
import webbrowser
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from urllib.parse import quote

from flodl.errors import StoreError
from flodl.monitor.server.hosts import is_loopback

__all__ = ["Dashboard", "serve"]

_PORTS_TRIED = 100
_STOP_SECONDS = 5.0
_TOKEN = re.compile(r"[A-Za-z0-9._~-]{16,200}")


class Dashboard:
    """A running server. Close it, use it in a `with`, or let it end with this process.

    Attributes:
        url: the address to open; with a token in it where one is needed.
        port: the port that was free.
    """

    def __init__(self, process: subprocess.Popen[bytes], url: str, port: int, *, keep: bool) -> None:
        self.url = url
        self.port = port
        self.process = process
        self._owner = os.getpid()
        self._keep = keep
        atexit.register(self._at_exit)

    def close(self) -> None:
        """Ends the server. May be called again."""
        atexit.unregister(self._at_exit)
        if os.getpid() != self._owner:  # a forked child's copy: the server is the parent's
            return
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()

    def __enter__(self) -> Dashboard:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _at_exit(self) -> None:
        if self._keep:
            self.process.returncode = self.process.poll() or 0  # else Python warns that it still runs, which is meant
        else:
            self.close()


def serve(
    port: int = 3000,
    *,
    folder: str | Path = "runs",
    host: str = "127.0.0.1",
    token: str | None = None,
    allowed_hosts: Iterable[str] = (),
    open: bool = False,
    keep: bool = False,
    quiet: bool = False,
) -> Dashboard:
    """Starts the dashboard's server for the runs in `folder`, in a process of its own, and returns at once.

    Whoever opens the page a moment too early waits that moment: the port is taken before the process starts. The server
    ends with this process, however that ends, unless `keep` says otherwise.

    Args:
        port: the port, or the next free one; 0 takes any.
        folder: where the runs are. It need not exist yet.
        host: the address to listen on. Another than a loopback address needs a token, which is made when not given.
        token: what every call must know, at least 16 letters and digits.
        allowed_hosts: names besides localhost by which the server may be called (behind a tunnel or proxy).
        open: open the page in a browser.
        keep: the server goes on when this process ends.
        quiet: do not print the address.

    Raises:
        StoreError: no free port, an address that cannot be listened on, a token that is too short.
    """
    if token is not None and not _TOKEN.fullmatch(token):
        raise StoreError("the dashboard's token needs 16 to 200 letters, digits or . _ ~ -")
    local = is_loopback(host)
    needed = token is not None or not local
    secret = token or secrets.token_urlsafe(32)
    listening, taken = _listen(host, port)
    with listening:
        bound = listening.getsockname()[1]
        names = {"localhost", "127.0.0.1", "::1", *(name.lower().strip("[]") for name in allowed_hosts)}
        if not local:
            names |= {host.lower(), socket.gethostname().lower()}
        settings = {
            "folder": str(Path(folder).absolute()),
            "socket": listening.fileno(),
            "token": secret,
            "token_needed": needed,
            "hosts": sorted(names),
            "any_address": not local,
            "parent": None if keep else os.getpid(),
        }
        process = _start(settings, listening.fileno())
    url = f"http://{_shown(host)}:{bound}/" + (f"#token={quote(secret)}" if needed else "")
    if not quiet:
        print(f"dashboard: {url}{taken}", file=sys.stderr, flush=True)
    if open:
        webbrowser.open(url)
    return Dashboard(process, url, bound, keep=keep)


def _listen(host: str, port: int) -> tuple[socket.socket, str]:
    """A listening socket, and a remark when it is not on the port that was wanted."""
    if not 0 <= port <= 65535:
        raise StoreError(f"port {port}: from 0 to 65535")
    for candidate in range(port, min(port + _PORTS_TRIED, 65536)):
        try:
            family, _, _, _, address = socket.getaddrinfo(host, candidate, type=socket.SOCK_STREAM)[0]
        except OSError as error:
            raise StoreError(f"cannot listen on {host!r}: {error.strerror}") from error
        listening = socket.socket(family, socket.SOCK_STREAM)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(128)
        except OSError as error:
            listening.close()
            if error.errno == errno.EADDRINUSE or (error.errno == errno.EACCES and candidate < 1024):
                continue
            raise StoreError(f"cannot listen on {host}, port {candidate}: {error.strerror}") from error
        return listening, f" (port {port} is taken)" if candidate != port and port else ""
    raise StoreError(f"ports {port} to {min(port + _PORTS_TRIED, 65536) - 1} are all taken: choose another with `port`")


def _start(settings: dict[str, object], fd: int) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-m", "flodl.monitor.server"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        pass_fds=(fd,),
        start_new_session=True,  # Ctrl-C is for the training, which may take a while to end
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},  # NumPy needs no threads for this
    )
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError), process.stdin:  # it ended already and told why on stderr
        process.stdin.write(json.dumps(settings).encode())
    return process


def _shown(host: str) -> str:
    if host in ("0.0.0.0", "::", ""):
        return socket.gethostname()
    return f"[{host}]" if ":" in host else host
