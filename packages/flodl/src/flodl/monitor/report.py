"""A run as one HTML file: the dashboard's page with the data in it, which opens without a server or a network."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from flodl.errors import StoreError
from flodl.monitor.exports import replacing
from flodl.monitor.store import RunView

__all__ = ["HtmlReport", "save_html"]

_PLACE = "<!--flodl-data-->"
_PAIRS = 100_000  # points in all charts together, twice; more make the file slow to open
_WIDTHS = (20, 2000)
_EVENTS = 10_000
_PROGRAM = "import os, sys; os.nice(19); from flodl.monitor import save_html; save_html(*sys.argv[1:])"
_EVERY_SECONDS = 5.0
_WAIT_SECONDS = 60.0
# What JSON allows inside of strings and HTML or JavaScript would read as something else.
_ESCAPES = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}

_log = logging.getLogger("flodl.monitor")


def save_html(run: Path | str, path: Path | str) -> None:
    """Writes the run in folder `run` as one HTML file, complete or not at all. From any thread, of a live run too.

    Raises:
        StoreError: the store cannot be read, `path` not be written, or the page was not built.
    """
    before, after = _template()
    with RunView(run) as view:
        document = _document(view)
    with replacing(path) as file:
        file.write(f'{before}<script type="application/json" id="flodl-data">{document}</script>{after}')


class HtmlReport:
    """Keeps an HTML file of a live run up to date, in a process of its own and of low priority.

    Args:
        run: the run's folder.
        path: the file.

    Raises:
        StoreError: the page was not built.
    """

    def __init__(self, run: Path | str, path: Path | str) -> None:
        _template()
        self._run, self._path = Path(run).absolute(), Path(path).absolute()
        self._process: subprocess.Popen[bytes] | None = None
        self._next = 0.0
        self._warned = False

    def refresh(self) -> None:
        """Writes the file anew, without waiting for it; skipped while one is being written or just was. Never raises."""
        if time.monotonic() < self._next or not self._ended():
            return
        self._next = time.monotonic() + _EVERY_SECONDS
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, str(self._run), str(self._path)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # it completes the file even if the training is killed meanwhile
                env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            )
        except OSError as error:
            self._warn(f"the report {self._path} is not kept up to date: {error}")

    def close(self) -> None:
        """Writes the file a last time, in this process. Call it after the run's recorder has finished.

        Raises:
            StoreError: see `save_html`.
        """
        if self._process is not None:
            try:
                self._process.wait(_WAIT_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        save_html(self._run, self._path)

    def _ended(self) -> bool:
        if self._process is None:
            return True
        status = self._process.poll()
        if status:
            self._warn(f"the report {self._path} could not be written (exit code {status})")
        return status is not None

    def _warn(self, message: str) -> None:
        if not self._warned:
            self._warned = True
            _log.warning(message)


def _template() -> tuple[str, str]:
    """The page before and after the place of the data."""
    from flodl.monitor.server.static import BUILD_COMMAND, REPORT_FILE, STATIC

    page = STATIC / REPORT_FILE
    try:
        parts = page.read_text(encoding="utf-8").split(_PLACE)
    except FileNotFoundError as error:
        raise StoreError(f"the dashboard's page is not built, so there is no report: run {BUILD_COMMAND}") from error
    if len(parts) != 2:
        raise StoreError(f"{page} is not the page of this version: build it anew with {BUILD_COMMAND}")
    return parts[0], parts[1]


def _document(view: RunView) -> str:
    from flodl.monitor.server import answers  # NumPy is not needed to start a training
    from flodl.monitor.server.memory import Memory

    memory = Memory()
    row, detail = answers.run_row(view), answers.run_detail(view)
    curves = sum(len(series["ranks"]) for series in detail["series"])
    width = min(max(_PAIRS // max(curves, 1), _WIDTHS[0]), _WIDTHS[1])
    data: dict[str, Any] = {
        "run": detail,
        "series": answers.series(view, memory, [series["id"] for series in detail["series"]], width=width),
        "epochs": {"epochs": answers.epochs(view)},
        "events": {"events": answers.events(view, without=["steps"], limit=_EVENTS, newest=True)},
        "timeline": answers.timeline(view, memory, width=_WIDTHS[1]),
        "resources": answers.resources(view, width=_WIDTHS[1]),
        "artifacts": {name: view.artifact(name) for name in detail["artifacts"]},
    }
    document = {"format": 1, "saved": time.time(), "runs": [row], "data": {row["id"]: data}}
    return answers.strict_json(document).decode().translate(_ESCAPES)
