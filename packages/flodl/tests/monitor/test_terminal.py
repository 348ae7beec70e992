"""Lines into a file, a bar on a real (pseudo) terminal."""

from __future__ import annotations

import io
import math
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flodl.monitor import Terminal, format_duration, format_value

pty = pytest.importorskip("pty")


def lines(*, total: int | None = 100, stream: io.StringIO | None = None) -> tuple[Terminal, io.StringIO]:
    stream = stream or io.StringIO()
    return Terminal(total, stream), stream


class Screen:
    """A pseudo-terminal and what was written to it."""

    def __init__(self) -> None:
        self._master, slave = pty.openpty()
        self.stream = os.fdopen(slave, "w", encoding="utf-8")
        self._read = b""
        self._thread = threading.Thread(target=self._collect)
        self._thread.start()

    def _collect(self) -> None:
        try:
            while data := os.read(self._master, 65536):
                self._read += data
        except OSError:  # how Linux says that the other end is closed
            pass

    def close(self) -> str:
        if not self.stream.closed:
            self.stream.close()
            self._thread.join()
            os.close(self._master)
        return self._read.decode()


@pytest.fixture
def environment() -> Iterator[pytest.MonkeyPatch]:
    """Undone before the check for changed variables."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TERM", "xterm-256color")
        patch.setenv("COLUMNS", "100")
        patch.delenv("NO_COLOR", raising=False)
        yield patch


@pytest.fixture
def screen(environment: pytest.MonkeyPatch) -> Iterator[Screen]:
    found = Screen()
    yield found
    found.close()


def test_the_line_of_an_epoch() -> None:
    terminal, stream = lines()
    terminal.epoch(3, {"loss": 1.5264, "acc": 0.91}, 0.0495)
    terminal.close()
    assert re.fullmatch(
        r"epoch   3/100  loss=1\.5264  acc=0\.91  \[50ms  ETA 4\.8s\]  RAM \d+(\.\d)?/\d+(\.\d)? GB(  VRAM [\d./]+ GB)?\n",
        stream.getvalue(),
    )


def test_lines_of_every_kind() -> None:
    terminal, stream = lines(total=2)
    terminal.epoch(1, {"loss": math.nan, "ppl": math.inf, "lr": 1e-5}, 1.0, nan_count=3)
    terminal.epoch(2, {}, 3.0)
    terminal.close()
    first, second = stream.getvalue().splitlines()
    assert first.startswith("epoch 1/2  loss=nan  ppl=inf  lr=1.000e-05  nan=3  [1.0s  ETA 1.0s]  RAM ")
    assert second.startswith("epoch 2/2  [3.0s  ETA 0s]  RAM ")


def test_an_open_end_has_no_eta() -> None:
    terminal, stream = lines(total=None)
    terminal.epoch(7, {"loss": 1.0}, 75.0)
    terminal.close()
    assert stream.getvalue().startswith("epoch   7  loss=1  [1m15s]  RAM ")


def test_one_slow_epoch_does_not_move_the_eta() -> None:
    terminal, stream = lines(total=10)
    for number, seconds in enumerate([60.0, 1.0, 1.0, 1.0, 90.0], 1):
        terminal.epoch(number, {}, seconds)
    terminal.close()
    assert "[1m30s  ETA 5.0s]" in stream.getvalue().splitlines()[-1]


def test_steps_print_nothing_into_a_file(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as file:
        terminal = Terminal(2, file)
        for step in range(10_000):
            terminal.step(1, step, 10_000, 0.5)
        terminal.epoch(1, {"loss": 0.5}, 1.0)
        terminal.close()
    text = (tmp_path / "log").read_text()
    assert text.count("\n") == 1
    assert text[:-1].isprintable()


def test_quiet_prints_nothing_but_notes(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal(2, quiet=True)
    terminal.step(1, 1, 2, 0.5)
    terminal.epoch(1, {"loss": 0.5}, 1.0)
    terminal.note("loss is NaN\nsince step 3")
    terminal.close()
    assert capsys.readouterr() == ("", "loss is NaN\\nsince step 3\n")


def test_names_are_shown_as_they_are_on_one_line() -> None:
    terminal, stream = lines()
    names = ["[bold]x[/]", "[/]", "a\nb\r", "\x1b[31mred", "训练", "x" * 10_000]
    terminal.epoch(1, dict.fromkeys(names, 1.0), 1.0)
    terminal.close()
    (line,) = stream.getvalue().splitlines()
    assert "  [bold]x[/]=1  [/]=1  a\\nb\\r=1  \\x1b[31mred=1  训练=1  xxxxx" in line
    assert len(line) < 250


def test_many_metrics_are_counted_not_printed() -> None:
    terminal, stream = lines()
    terminal.epoch(1, {f"m{i}": 1.0 for i in range(12_000)}, 1.0)
    terminal.close()
    assert "m11=1  (+11988 more)  [1.0s" in stream.getvalue()


def test_a_stream_that_lacks_a_character_gets_its_escape() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    terminal = Terminal(1, stream)
    terminal.epoch(1, {"Verlust für 训练": 1.0}, 1.0)
    terminal.close()
    stream.seek(0)
    assert "Verlust f\\xfcr \\u8bad\\u7ec3=1" in stream.read()


def test_a_bar_shows_the_steps_and_goes_away(screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(threading.enumerate())
    monkeypatch.setattr("flodl.monitor.terminal._REDRAW_SECONDS", 0.0)
    terminal = Terminal(3, screen.stream)
    for step in range(1, 6):
        terminal.step(2, step, 5, 0.25)
        time.sleep(0.001)
    assert set(threading.enumerate()) == before
    terminal.epoch(2, {"[bold]loss": 0.25}, 1.0)
    terminal.step(3, 1, 5, 0.2)
    terminal.close()
    text = screen.close()
    assert re.search(r"epoch 2/3 .*5/5 .*steps/s  loss=0\.25", text)
    assert "epoch 2/3  [bold]loss=0.25" in text
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 2, "the cursor is shown again"


def test_the_bar_is_redrawn_at_most_ten_times_a_second(screen: Screen) -> None:
    class Loss:
        read = 0

        def __float__(self) -> float:
            Loss.read += 1
            return 0.5

    terminal = Terminal(1, screen.stream)
    begin = time.monotonic()
    for step in range(20_000):
        terminal.step(1, step, 20_000, Loss())
    seconds = time.monotonic() - begin
    terminal.close()
    assert 1 <= Loss.read <= seconds / 0.1 + 1


def test_no_color_is_respected(screen: Screen, environment: pytest.MonkeyPatch) -> None:
    environment.setenv("NO_COLOR", "1")
    terminal = Terminal(3, screen.stream)
    terminal.step(1, 1, 5, 0.2)
    terminal.epoch(1, {"loss": 0.25}, 1.0)
    terminal.close()
    assert not re.search(r"\x1b\[[\d;]*3[0-9]", screen.close())


def test_a_dumb_terminal_gets_plain_lines(screen: Screen, environment: pytest.MonkeyPatch) -> None:
    environment.setenv("TERM", "dumb")
    terminal = Terminal(3, screen.stream)
    terminal.step(1, 1, 5, 0.2)
    terminal.epoch(1, {"loss": 0.25}, 1.0)
    terminal.close()
    text = screen.close()
    assert text.startswith("epoch 1/3  loss=0.25")
    assert "\x1b" not in text


def test_a_bar_left_open_is_taken_away_at_exit() -> None:
    master, slave = pty.openpty()
    script = "from flodl.monitor import Terminal\nTerminal(3).step(1, 1, 5, 0.2)\n"
    subprocess.run(
        [sys.executable, "-c", script], stdout=slave, check=True, env={**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    )
    os.close(slave)
    text = os.read(master, 65536)
    os.close(master)
    assert text.count(b"\x1b[?25l") == text.count(b"\x1b[?25h") == 1


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.5264, "1.5264"),
        (0.91, "0.91"),
        (0.0, "0"),
        (-0.000012345, "-1.234e-05"),
        (0.012345678, "0.01235"),
        (1526.44, "1526.4"),
        (123456.7, "123457"),
        (99999.5, "100000"),
        (2.5e9, "2.500e+09"),
        (3, "3"),
        (True, "1"),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
        pytest.param(10**400, "inf", id="huge"),
    ],
)
def test_numbers_as_people_read_them(value: float, text: str) -> None:
    assert format_value(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.0004, "0.4ms"),
        (0.00099, "1ms"),
        (0.049, "49ms"),
        (0.9996, "1.0s"),
        (4.84, "4.8s"),
        (9.96, "10s"),
        (59.6, "1m00s"),
        (192, "3m12s"),
        (3599.7, "1h00m"),
        (7500, "2h05m"),
        (86399, "1d00h"),
        (273600, "3d04h"),
        (math.nan, "?"),
        (math.inf, "?"),
        (-1, "?"),
    ],
)
def test_durations_as_people_read_them(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
