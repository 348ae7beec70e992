"""The page in a real browser, from a real server, of real trainings."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Page, Playwright, expect, sync_playwright

from flodl.monitor import Dashboard, serve

expect.set_options(timeout=20_000)  # a busy machine takes its time

PACKAGE = Path(__file__).parents[3]
WEB = PACKAGE.parents[1] / "web"
AXE = WEB / "node_modules" / "axe-core" / "axe.min.js"
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def _missing(reason: str) -> None:
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def built_page() -> None:
    """Builds the page where a source of it is newer."""
    command = [sys.executable, str(PACKAGE / "hatch_build.py"), "--if-older"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        _missing(f"the page cannot be built here: {done.stderr}")


@pytest.fixture(scope="module")
def driver(built_page: None) -> Iterator[Playwright]:
    with sync_playwright() as playwright:
        yield playwright


@pytest.fixture
def context(driver: Playwright) -> Iterator[BrowserContext]:
    """Of a browser of its own: it starts and ends processes when it likes, and no test may leave any behind."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        _missing("no Chromium here: apt install chromium")
    browser = driver.chromium.launch(executable_path=path, args=FLAGS)
    yield browser.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    browser.close()


Open = Callable[..., Page]


@pytest.fixture
def open_page(context: BrowserContext) -> Iterator[Open]:
    """Opens an address; the test fails if a page reports an error or something that its policy forbids."""
    problems: list[str] = []

    def open_page(url: str, *, offline: bool = False) -> Page:
        page = context.new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", lambda dialog: problems.append(f"dialog: {dialog.message}"))

        def console(message: Any) -> None:
            lost = "ERR_CONNECTION" in message.text or "ERR_INCOMPLETE" in message.text or "ERR_EMPTY" in message.text
            if message.type in ("error", "warning") and not (offline and lost):
                problems.append(message.text)

        page.on("console", console)
        page.set_default_timeout(20_000)
        page.goto(url)
        return page

    yield open_page
    assert problems == []


@pytest.fixture
def dashboard(tmp_path: Path, built_page: None) -> Iterator[Dashboard]:
    with serve(0, folder=tmp_path / "runs", quiet=True) as dashboard:
        yield dashboard


TRAINING = """
import sys, time
import torch
from torch import nn
from torch.nn import functional as F
import flodl as fl

epochs, pause = int(sys.argv[1]), float(sys.argv[2])
torch.manual_seed(0)
torch.set_num_threads(1)
x = torch.randn(160, 8)
data = fl.data.Tensors(x, (x.sum(1) > 0).long())
model = fl.flow(nn.Linear(8, 16)).through(nn.ReLU()).also(nn.Linear(16, 16)).through(nn.Linear(16, 2)).build()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
trainer = fl.Trainer.setup(model, optimizer, data, batch_size=16, epochs=epochs)
for _ in trainer.epochs():
    for inputs, labels in trainer.batches():
        trainer.step(F.cross_entropy(trainer.model(inputs), labels), lr=0.1)
        time.sleep(pause)
"""

Train = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def train(tmp_path: Path) -> Iterator[Train]:
    """Starts a training of 10 steps an epoch, in a process of its own, with its run in `tmp_path`/runs."""
    started: list[subprocess.Popen[str]] = []
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(TRAINING))

    def train(epochs: int = 1000, pause: float = 0.02) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, str(script), str(epochs), str(pause)],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield train
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


class Relay:
    """Between the browser and a server: counts requests, and cuts all connections on demand."""

    def __init__(self, port: int) -> None:
        self.requests: list[str] = []
        self._target = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def cut(self) -> None:
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.cut()
        for thread in self._threads:
            thread.join()
        for connection in self._open:
            connection.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                browser, _ = self._listening.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                self._open += [browser, server]
                for source, target, log in ((browser, server, True), (server, browser, False)):
                    thread = threading.Thread(target=self._pump, args=(source, target, log))
                    self._threads.append(thread)
                    thread.start()

    def _pump(self, source: socket.socket, target: socket.socket, log: bool) -> None:
        with contextlib.suppress(OSError):
            while block := source.recv(65536):
                if log:
                    self.requests.append(block.split(b"\r\n", 1)[0].decode("latin-1"))
                target.sendall(block)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def relay(dashboard: Dashboard) -> Iterator[Relay]:
    relay = Relay(dashboard.port)
    yield relay
    relay.close()
