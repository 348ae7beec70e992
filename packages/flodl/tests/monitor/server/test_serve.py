"""The server's process: how it starts and when it ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from flodl.errors import StoreError
from flodl.monitor import serve


def is_alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def wait_until_gone(pid: int, seconds: float = 10) -> bool:
    end = time.monotonic() + seconds
    while is_alive(pid) and time.monotonic() < end:
        time.sleep(0.05)
    return not is_alive(pid)


def test_it_answers_and_ends(tmp_path: Path) -> None:
    with serve(0, quiet=True) as dashboard:
        assert urllib.request.urlopen(f"{dashboard.url}api/runs", timeout=20).read() == b'{"runs":[]}'
    assert dashboard.process.returncode is not None
    dashboard.close()


def test_a_port_that_is_taken(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with serve(port) as dashboard:
            assert dashboard.port > port
        assert f"http://127.0.0.1:{dashboard.port}/ (port {port} is taken)" in capfd.readouterr().err


@pytest.mark.parametrize(("port", "host"), [(70_000, "127.0.0.1"), (-1, "127.0.0.1"), (0, "no such host.invalid")])
def test_where_nobody_can_listen(port: int, host: str) -> None:
    with pytest.raises(StoreError):
        serve(port, host=host, quiet=True)


def test_the_page_is_there_or_says_how_to_build_it(browser) -> None:
    found = browser("/")
    if found.status == 503:
        assert b"./fdl web" in found.body
    else:
        assert found.headers["content-type"].startswith("text/html")


SCRIPT = """
    import sys, time
    from flodl.monitor import serve
    dashboard = serve(0, quiet=True, keep="keep" in sys.argv)
    print(dashboard.url, dashboard.process.pid, flush=True)
    if "end" not in sys.argv:
        time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_it_ends_with_the_process_that_started_it(start: Callable, number: signal.Signals) -> None:
    process: subprocess.Popen[str] = start(SCRIPT)
    assert process.stdout
    url, pid = process.stdout.readline().split()
    urllib.request.urlopen(url + "api/session", timeout=20).close()
    os.kill(process.pid, number)
    process.wait(10)
    assert wait_until_gone(int(pid))


def test_it_can_be_told_to_stay(start: Callable) -> None:
    process: subprocess.Popen[str] = start(SCRIPT, "keep", "end")
    assert process.stdout
    url, pid = process.stdout.readline().split()
    assert process.wait(20) == 0
    try:
        time.sleep(1)
        assert urllib.request.urlopen(url + "api/runs", timeout=20).read() == b'{"runs":[]}'
    finally:
        os.kill(int(pid), signal.SIGTERM)
    assert wait_until_gone(int(pid))
    assert process.stderr
    assert process.stderr.read() == ""


def test_ctrl_c_is_for_the_training_alone(start: Callable) -> None:
    """The terminal sends it to the whole group; the training may take its time, with the dashboard."""
    process: subprocess.Popen[str] = start(
        """
        import signal, time
        from flodl.monitor import serve
        signal.signal(signal.SIGINT, lambda *_: None)
        with serve(0, quiet=True) as dashboard:
            print(dashboard.url, flush=True)
            time.sleep(60)
        """
    )
    assert process.stdout
    url = process.stdout.readline().strip()
    urllib.request.urlopen(url + "api/session", timeout=20).close()
    os.killpg(process.pid, signal.SIGINT)
    time.sleep(0.5)
    assert urllib.request.urlopen(url + "api/runs", timeout=20).status == 200


def test_a_forked_child_does_not_end_it(start: Callable) -> None:
    process: subprocess.Popen[str] = start(
        """
        import os, urllib.request
        from flodl.monitor import serve
        dashboard = serve(0, quiet=True)
        child = os.fork()
        if child == 0:
            dashboard.close()
            raise SystemExit  # with what is registered for the end of a process
        os.waitpid(child, 0)
        print(urllib.request.urlopen(dashboard.url + "api/runs", timeout=20).status)
        """
    )
    out, err = process.communicate(timeout=30)
    assert (out, err) == ("200\n", "")


def test_starting_it_costs_a_training_neither_torch_nor_a_web_server(start: Callable) -> None:
    process: subprocess.Popen[str] = start(
        """
        import sys
        from flodl.monitor import serve
        serve(0, quiet=True).close()
        print({"torch", "starlette", "uvicorn", "numpy"} & set(sys.modules))
        """
    )
    assert process.communicate(timeout=30)[0] == "set()\n"
