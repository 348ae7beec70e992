"""The download against a real HTTP server that serves the real files, and fails in the ways that servers fail."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from flodl import DataError
from flodl.data import FashionMNIST
from flodl.data import fashion_mnist as module
from flodl.data.download import download

FILES = ["t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"]


class Server(ThreadingHTTPServer):
    daemon_threads = False  # server_close then waits for them
    folder: Path
    fault = ""
    requests: list[str]
    released: threading.Event

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away in the middle is what some tests do."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.requests.append(self.path)
        fault = self.server.fault
        body = (self.server.folder / self.path.rsplit("/", 1)[-1]).read_bytes()
        if fault == "forbidden":
            self.send_error(403)
            return
        if fault == "login page":
            body = b"<html>Please log in to this network</html>"
        if fault == "cut":
            body = body[: len(body) // 2]
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        half = len(body) // 2
        self.wfile.write(body[:half])
        if fault == "always drops" or (fault == "drops once" and len(self.server.requests) == 1):
            return
        if fault == "hangs":
            self.wfile.flush()
            self.server.released.wait(60)
        self.wfile.write(body[half:])

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@pytest.fixture
def server(fashion_mnist_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    running = Server(("127.0.0.1", 0), Handler)
    running.folder, running.requests, running.released = fashion_mnist_files, [], threading.Event()
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setenv("FLODL_FASHION_MNIST_URL", url(running))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv("FLODL_DATA", raising=False)
    monkeypatch.setattr(module, "_SYSTEM", tmp_path / "system")
    yield running
    running.released.set()
    running.shutdown()
    thread.join()
    running.server_close()


def url(server: Server) -> str:
    return f"http://127.0.0.1:{server.server_address[1]}/files/"


def cached(tmp_path: Path) -> list[str]:
    folder = tmp_path / "cache" / "flodl" / "fashion-mnist"
    return sorted(os.listdir(folder)) if folder.exists() else []


def test_downloaded_once_then_found_in_the_cache(server: Server, tmp_path: Path) -> None:
    assert len(FashionMNIST("test")) == 10_000
    assert cached(tmp_path) == FILES
    assert server.requests == [f"/files/{name}" for name in FILES]
    assert len(FashionMNIST("test")) == 10_000
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("forbidden", "the server answered 403 Forbidden"),
        ("login page", "is altered: 42 bytes of SHA-256"),
        ("cut", "is truncated: its compressed data ends early"),
        ("always drops", r"the connection broke off after \d+ of \d+ bytes \(3 attempts\)"),
    ],
)
def test_a_server_that_fails_is_named_and_nothing_is_kept(
    server: Server, tmp_path: Path, fault: str, reason: str
) -> None:
    server.fault = fault
    with pytest.raises(DataError, match=f"{url(server)}{FILES[0]}:? {reason}"):
        FashionMNIST("test")
    assert cached(tmp_path) == []


def test_a_connection_that_breaks_off_once_is_tried_again(server: Server, tmp_path: Path) -> None:
    server.fault = "drops once"
    assert len(FashionMNIST("test")) == 10_000
    assert len(server.requests) == 3
    assert cached(tmp_path) == FILES


def test_a_silent_server_is_given_up(server: Server) -> None:
    server.fault = "hangs"
    with pytest.raises(DataError, match=r"timed out \(3 attempts\)"):
        download(url(server) + FILES[1], timeout_s=0.2)


@pytest.mark.parametrize("wrong", ["nonsense", "http://127.0.0.1:nonsense/x", "ftpx://a/b"])
def test_an_address_that_is_none(wrong: str) -> None:
    with pytest.raises(DataError, match=wrong):
        download(wrong)


def test_a_damaged_file_in_the_cache_is_replaced(server: Server, tmp_path: Path) -> None:
    FashionMNIST("test")
    bad = tmp_path / "cache" / "flodl" / "fashion-mnist" / FILES[0]
    whole = bad.read_bytes()
    bad.write_bytes(whole[:1000])
    with pytest.warns(UserWarning, match=f"Not used: {bad} is truncated"):
        FashionMNIST("test")
    assert bad.read_bytes() == whole


def test_a_cache_that_cannot_be_written_is_said_and_not_fatal(server: Server, tmp_path: Path) -> None:
    (tmp_path / "cache").touch()
    with pytest.warns(UserWarning, match="was downloaded but cannot be kept in"):
        assert len(FashionMNIST("test")) == 10_000


# An installed Debian package would be found before the server is asked.
LOADER = textwrap.dedent(
    """
    from pathlib import Path
    from flodl.data import FashionMNIST, fashion_mnist
    fashion_mnist._SYSTEM = Path("/nonexistent")
    print(int(FashionMNIST("test")[:][1].sum()), flush=True)
    """
)


def loading(stderr: int = subprocess.PIPE) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", LOADER], stdout=subprocess.PIPE, stderr=stderr)


def wait_for_a_request(server: Server) -> None:
    end = time.monotonic() + 60
    while not server.requests:
        assert time.monotonic() < end, "the process never asked the server"
        time.sleep(0.01)


def test_two_processes_at_once_are_both_right(server: Server, tmp_path: Path) -> None:
    processes = [loading(), loading()]
    results = [process.communicate() for process in processes]
    assert [(process.returncode, out) for process, (out, _) in zip(processes, results, strict=True)] == [
        (0, b"45000\n")
    ] * 2
    assert cached(tmp_path) == FILES


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-c", "kill -9"])
def test_stopped_in_the_middle_it_leaves_nothing(server: Server, tmp_path: Path, how: signal.Signals) -> None:
    server.fault = "hangs"
    process = loading()
    wait_for_a_request(server)
    process.send_signal(how)
    process.communicate()
    assert process.returncode == -how
    assert cached(tmp_path) == []


def test_progress_is_shown_on_a_terminal_only(server: Server) -> None:
    server.fault = "hangs"
    ours, theirs = pty.openpty()
    process = loading(stderr=theirs)
    os.close(theirs)
    wait_for_a_request(server)
    shown, released = b"", False
    with os.fdopen(ours, "rb", buffering=0) as terminal, contextlib.suppress(OSError):
        while chunk := terminal.read(65536):  # at its end a pseudo-terminal raises an OSError
            shown += chunk
            if b"50%" in shown and not released:
                released, server.fault = True, ""
                server.released.set()
    out, _ = process.communicate()
    assert released, shown
    assert out == b"45000\n"
    assert FILES[0].encode() in shown
    _, quiet = loading().communicate()
    assert quiet == b""
