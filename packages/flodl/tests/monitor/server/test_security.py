"""Who is refused, and what cannot be reached."""

from __future__ import annotations

import os
import shutil
import socket
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from flodl.errors import StoreError
from flodl.monitor import Recorder, RunView, serve

TOKEN = "a-token-of-the-users-0123456789"


@pytest.fixture
def run(runs: Path) -> Path:
    with Recorder(runs, run_id="r") as recorder:
        recorder.metric("loss", 1, step=1)
    return runs / "r"


def test_headers_that_tell_a_browser_to_be_strict(browser) -> None:
    for path in ("/", "/api/runs", "/api/none", "/nothing", "/%2e%2e/"):
        headers = browser(path).headers
        policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == "'self'"
        assert policy["frame-ancestors"] == "'none'"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert not [name for name in headers if name.startswith("access-control")]
        assert "server" not in headers


def test_hosts_that_are_this_machine(browser) -> None:
    for host in ("127.0.0.1", "localhost", "LOCALHOST:80", "[::1]:3000", "localhost."):
        assert browser("/api/runs", Host=host).status == 200, host


def test_hosts_that_are_not(browser) -> None:
    for host in ("evil.example", "localhost.evil.example", "127.0.0.1.evil", "10.0.0.1", "", "a b", "127.0.0.1@evil"):
        found = browser("/api/runs", Host=host)
        assert (found.status, "--allowed-host" in found.json["error"]) == (400, True), host


def test_a_host_that_was_allowed(open_dashboard: Callable) -> None:
    browser = open_dashboard(allowed_hosts=["Proxy.example"])
    assert browser("/api/runs", Host="proxy.example:8080").status == 200
    assert browser("/api/runs", Host="other.example").status == 400


def test_no_or_two_hosts(browser) -> None:
    for lines in ("", "Host: localhost\r\nHost: localhost\r\n"):
        with socket.create_connection(("127.0.0.1", browser.dashboard.port), timeout=10) as connection:
            connection.sendall(f"GET /api/runs HTTP/1.1\r\n{lines}Connection: close\r\n\r\n".encode())
            assert connection.recv(100).split()[1] == b"400"


def test_other_sites_are_refused(browser) -> None:
    for path in ("/api/runs", "/api/session", "/api/stream"):
        for site in ("cross-site", "same-site"):
            assert browser(path, Sec_Fetch_Site=site).status == 403, path
    assert browser("/api/session", Sec_Fetch_Site="same-origin").json["token"]


PATHS = [
    "/../secret",
    "/..%2fsecret",
    "/%2e%2e/secret",
    "/%2e%2e%2fsecret",
    "/%252e%252e/secret",
    "/..\\secret",
    "/..%5csecret",
    "/secret%00.html",
    "//etc/passwd",
    "/assets/../../serve.py",
    "/serve.py",
    "/report.html",
    "/.git",
]


def test_paths_that_lead_elsewhere(browser, run: Path) -> None:
    """Nothing is served and nothing is made, also below the runs."""
    (run.parent / "secret").write_text("secret")
    (run.parent.parent / "secret").write_text("secret")
    before = sorted(run.parent.parent.rglob("*"))
    for path in PATHS:
        for place in ("", "/api/runs", "/api/runs/r/artifact", "/api/runs/r/.."):
            found = browser(place + path)
            assert found.status in (400, 404), place + path
            assert b"secret" not in found.body.replace(path.encode(), b"")
        for query in (f"/api/stream?run={path}:0", f"/api/runs/r/artifact?name={path}"):
            assert browser(query).status in (400, 404), query
    assert sorted(run.parent.parent.rglob("*")) == before


def test_runs_that_are_almost_called_so(browser, run: Path) -> None:
    for name in ("r#x", "r%23x", "r%3fx", "r%00", "%00r", "..%2fruns%2fr", "R", "%2e", "r%20"):
        for end in ("", "/series?s=1"):
            assert browser(f"/api/runs/{name}{end}").status in (400, 404), name


def test_links_out_of_the_folder_are_not_followed(browser, run: Path, tmp_path: Path) -> None:
    with Recorder(tmp_path / "outside", run_id="secret") as recorder:
        recorder.metric("secret", 1, step=1)
    runs = run.parent
    (runs / "linked").symlink_to(tmp_path / "outside" / "secret")
    (runs / "file").mkdir()
    (runs / "file" / "run.db").symlink_to(tmp_path / "outside" / "secret" / "run.db")
    shutil.copytree(run, runs / "beside")
    (runs / "beside" / "run.db-wal").symlink_to(tmp_path / "outside" / "wal")
    (runs / "circle").symlink_to(runs / "circle")
    (runs / "inside").symlink_to(run)
    before = sorted(tmp_path.rglob("*"))
    assert [row["id"] for row in browser("/api/runs").json["runs"]] == ["inside", "r"]
    for name in ("linked", "file", "beside", "circle"):
        assert browser(f"/api/runs/{name}").status == 404
        assert browser(f"/api/stream?run={name}:0").status == 404
    assert browser("/api/runs/inside").status == 200
    assert sorted(tmp_path.rglob("*")) == before


def test_broken_stores_are_shown_and_stop_nothing(browser, run: Path) -> None:
    runs = run.parent
    for name in ("empty", "noise", "newer", "cut off", "locked", "values"):
        shutil.copytree(run, runs / name)
    (runs / "empty" / "run.db").write_bytes(b"")
    (runs / "noise" / "run.db").write_bytes(os.urandom(10_000))
    good = (run / "run.db").read_bytes()
    (runs / "cut off" / "run.db").write_bytes(good[: len(good) // 2])
    for name, change in (("newer", "PRAGMA user_version=99"), ("values", "UPDATE run SET versions = '{'")):
        connection = sqlite3.connect(runs / name / "run.db")
        connection.execute(change)
        connection.commit()
        connection.close()
    lock = sqlite3.connect(runs / "locked" / "run.db", isolation_level=None)
    lock.execute("PRAGMA locking_mode=EXCLUSIVE")
    lock.execute("BEGIN EXCLUSIVE")
    try:
        rows = {row["id"]: row["problem"] for row in browser("/api/runs").json["runs"]}
        assert rows.pop("r") is None
        assert rows.keys() == {"empty", "noise", "newer", "cut off", "locked", "values"}
        for name, word in (("empty", "empty"), ("noise", "damaged"), ("newer", "newer"), ("locked", "locked")):
            assert word in rows[name]
        assert all(rows.values())
        for name, problem in rows.items():
            found = browser(f"/api/runs/{name.replace(' ', '%20')}")
            assert found.status == 503
            assert found.json["error"].split(":")[0] == problem.split(":")[0]
        with browser.stream("run=locked:0&run=noise:0&run=r:0") as stream:
            first, second = stream.until("problem").data, stream.until("problem").data
            assert (first["run"], second["run"]) == ("locked", "noise")
            assert stream.until("rows").data["run"] == "r"
    finally:
        lock.close()
    assert browser("/api/runs/r").status == 200


def test_the_audit_names_who_asked(browser, runs: Path) -> None:
    with Recorder(runs, run_id="live") as recorder:
        url = "/api/runs/live/control"
        assert browser(url, "POST", {"action": "stop"}).status == 401
        assert browser(url, "POST", {"action": "stop"}, X_Flodl_Token="wrong").status == 401
        browser.headers["X-Flodl-Token"] = browser.token()
        assert browser(url, "POST", {"action": "stop"}, Sec_Fetch_Site="cross-site").status == 403
        for wrong in ({"action": "delete"}, {}, [], b"{", b"x" * 5000):
            assert browser(url, "POST", wrong).status == 400
        assert browser(url).status in (404, 405)
        assert browser("/api/runs/none/control", "POST", {"action": "stop"}).status == 404
        with RunView(recorder.folder) as view:
            assert view.audit() == []
        assert browser(url, "POST", {"action": "save"}).json == {"id": 1}
        recorder.flush()
        assert [r.action for r in recorder.requests()] == ["save"]
        recorder.flush()
        (row,) = browser("/api/runs/live").json["audit"]
        assert (row["action"], row["taken"] is None) == ("save", False)
        assert row["origin"].startswith("dashboard, 127.0.0.1")
    assert browser(url, "POST", {"action": "stop"}).status == 409


def test_a_token_of_the_users_is_needed_for_everything(open_dashboard: Callable, run: Path) -> None:
    browser = open_dashboard(token=TOKEN)
    assert browser.dashboard.url.endswith(f"#token={TOKEN}")
    assert browser("/").status in (200, 503)
    assert browser("/api/session").json == {"token_needed": True, "token": None}
    for path in ("/api/runs", "/api/runs/r", "/api/runs/none", "/api/stream?run=r:0", "/api/runs/r/artifact?name=x"):
        assert browser(path).status == 401
        assert browser(path, X_Flodl_Token=TOKEN[:-1]).status == 401
    browser.headers["X-Flodl-Token"] = TOKEN
    assert browser("/api/runs").status == 200
    with browser.stream("run=r:0") as stream:
        assert stream.until("rows").data["points"]


def test_a_wider_bind_has_a_token_by_itself(open_dashboard: Callable, run: Path, capfd) -> None:
    browser = open_dashboard(host="0.0.0.0", quiet=False)
    printed = capfd.readouterr().err
    token = browser.dashboard.url.partition("#token=")[2]
    assert len(token) > 30
    assert browser.dashboard.url in printed
    assert browser("/api/runs").status == 401
    assert browser("/api/session").json["token"] is None
    browser.headers["X-Flodl-Token"] = token
    assert browser("/api/runs", Host="192.168.7.7:3000").status == 200  # an address is no name that can be turned
    assert browser("/api/runs", Host="evil.example").status == 400
    browser("/nothing?token=" + token)
    assert token not in capfd.readouterr().err


@pytest.mark.parametrize("token", ["short", "", "with a space in the middle", "x" * 300, "ünïcödé-is-no-header"])
def test_tokens_that_are_refused(token: str) -> None:
    with pytest.raises(StoreError, match="16 to 200"):
        serve(0, token=token, quiet=True)


def test_long_requests_do_not_stop_the_server(browser, run: Path) -> None:
    assert browser("/api/runs/" + "x" * 10_000).status == 404
    with socket.create_connection(("127.0.0.1", browser.dashboard.port), timeout=10) as connection:
        connection.sendall(b"GET /" + b"x" * 200_000)
        assert connection.recv(100).split()[1] == b"400"
    assert browser("/api/runs").status == 200
