"""One file from a server that does everything wrong."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from flodl_cli.libtorch.errors import DownloadError, HashError, LibtorchError
from flodl_cli.libtorch.fetch import Forbidden, Transport, fetch, shown_url

CONTENT = os.urandom(100_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Told:
    """A progress that keeps what it is told."""

    def __init__(self) -> None:
        self.starts: list[tuple[int, int | None]] = []
        self.lines: list[str] = []
        self.done = 0

    def start(self, what: str, done: int, total: int | None) -> None:
        self.starts.append((done, total))
        self.done = done

    def advance(self, count: int) -> None:
        self.done += count

    def say(self, line: str) -> None:
        self.lines.append(line)


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def get(server: Any, told: Told, tmp_path: Path) -> Any:
    server.files["/a.zip"] = CONTENT

    def call(
        *faults: str, sha256: str | None = SHA256, path: str = "/a.zip", retries: int = 2, timeout: float = 5.0
    ) -> bytes:
        server.faults["/a.zip"] = list(faults)
        found, digest = fetch(server.url + path, tmp_path, sha256, told, Transport(timeout, retries, pause_s=0.0))
        assert digest == hashlib.sha256(found.read_bytes()).hexdigest()
        return found.read_bytes()

    return call


def test_a_file_arrives(get: Any, told: Told) -> None:
    assert get() == CONTENT
    assert (told.starts, told.done) == ([(0, 100_000)], 100_000)


@pytest.mark.parametrize("fault", ["500", "502", "503", "429", "drop"])
def test_what_passes_is_tried_again(get: Any, told: Told, fault: str) -> None:
    assert get(fault, fault) == CONTENT
    assert len(told.lines) == 2
    assert all("again in 0 s" in line for line in told.lines)


def test_a_download_that_broke_off_goes_on_where_it_was(get: Any, server: Any, told: Told) -> None:
    assert get("drop", "drop") == CONTENT
    assert server.requests == [("/a.zip", None), ("/a.zip", "bytes=50000-"), ("/a.zip", "bytes=75000-")]
    assert told.starts == [(0, 100_000), (50_000, 100_000), (75_000, 100_000)]


def test_also_in_a_later_call(get: Any, server: Any, told: Told) -> None:
    with pytest.raises(DownloadError, match=r"broke off at 50.0 kB of 100.0 kB \(tried 1 times\); 50.0 kB are kept"):
        get("drop", retries=0)
    assert get() == CONTENT
    assert server.requests[1] == ("/a.zip", "bytes=50000-")


def test_what_is_complete_is_not_asked_for_again(get: Any, server: Any) -> None:
    get()
    assert get() == CONTENT
    assert len(server.requests) == 1


def test_a_server_without_range_sends_all_of_it_again(get: Any, server: Any, told: Told) -> None:
    assert get("drop", "no range") == CONTENT
    assert told.starts == [(0, 100_000), (0, 100_000)]


def test_another_file_under_the_same_name_is_not_appended(get: Any, server: Any, tmp_path: Path) -> None:
    with pytest.raises(DownloadError):
        get("drop", retries=0, sha256=None)
    server.files["/a.zip"] = other = os.urandom(100_000)
    assert get(sha256=None) == other  # If-Range: the server sends the whole


def test_without_marks_only_a_hash_makes_it_safe_to_resume(get: Any, server: Any) -> None:
    server.marks = False
    assert get("drop") == CONTENT
    assert get("drop", path="/a.zip", sha256=None) == CONTENT
    with_hash, without = server.requests[1][1], server.requests[-1][1]
    assert (with_hash, without) == ("bytes=50000-", None)


def test_a_shorter_file_than_the_part_is_fetched_from_the_start(get: Any, server: Any) -> None:
    with pytest.raises(DownloadError):
        get("drop", retries=0)
    server.marks = False  # no If-Range check: the server says 416
    server.files["/a.zip"] = short = CONTENT[:20_000]
    assert get(sha256=hashlib.sha256(short).hexdigest()) == short


@pytest.mark.parametrize("status", ["400", "404", "410"])
def test_a_refusal_is_told_at_once_and_its_text_never_kept(get: Any, server: Any, tmp_path: Path, status: str) -> None:
    with pytest.raises(DownloadError, match=f"/a.zip: the server says {status} "):
        get(status)
    assert len(server.requests) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("status", ["401", "403", "407"])
def test_forbidden(get: Any, tmp_path: Path, status: str) -> None:
    with pytest.raises(Forbidden, match=status):
        get(status)
    assert list(tmp_path.iterdir()) == []


def test_errors_without_end(get: Any, server: Any, tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match=r"503 Service Unavailable \(tried 3 times\)$"):
        get("503", "503", "503")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("fault", ["truncated", "wrong"])
def test_a_wrong_hash_leaves_nothing(get: Any, tmp_path: Path, fault: str) -> None:
    with pytest.raises(HashError, match=r"a.zip has the SHA-256 \w{64}, expected \w{64}: removed"):
        get("truncated") if fault == "truncated" else get(sha256="0" * 64)
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_falls_silent(get: Any, tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match=r"no answer for 0.2 s \(tried 2 times\); 75.0 kB are kept"):
        get("slow", "slow", retries=1, timeout=0.2)


def test_a_server_that_is_not_there(told: Told, tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match="Connection refused"):
        fetch("http://127.0.0.1:1/a.zip", tmp_path, None, told, Transport(1.0, 1, 0.0))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("scheme", ["ftp", "file"])
def test_a_redirect_to_another_scheme_is_refused(get: Any, tmp_path: Path, scheme: str) -> None:
    with pytest.raises(DownloadError, match=f"redirects to {scheme}://: refused"):
        get(f"redirect {scheme}://somewhere/a.zip")
    assert list(tmp_path.iterdir()) == []


def test_other_redirects_are_followed(get: Any, server: Any) -> None:
    server.files["/b.zip"] = CONTENT
    assert get("redirect /b.zip") == CONTENT


def test_a_full_disk_is_seen_before_the_first_byte(get: Any, server: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    with pytest.raises(LibtorchError, match=r"has 1.0 kB left, the download needs 100.0 kB: nothing was installed"):
        get()
    assert list(tmp_path.iterdir()) == []


def test_secrets_are_not_shown() -> None:
    assert shown_url("https://me:secret@host:8/a/b.zip?token=x#y") == "https://host:8/a/b.zip"
