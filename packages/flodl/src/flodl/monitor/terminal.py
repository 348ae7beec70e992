"""The terminal: one line for each epoch, and a step bar within it where a person is watching."""

from __future__ import annotations

import atexit
import os
import statistics
import sys
import time
from collections import deque
from collections.abc import Mapping
from typing import SupportsFloat, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.text import Text

from flodl.monitor.format import format_duration, format_gigabytes, format_name, format_value
from flodl.monitor.resources import ResourceSampler

__all__ = ["Terminal"]

_REDRAW_SECONDS = 0.1
_ETA_EPOCHS = 9
_MAX_METRICS = 12


class Terminal:
    """Prints a training's progress.

    On a terminal, a bar shows the steps of the epoch under way; into a file or a pipe there is only the line of each epoch,
    without control characters.

    Args:
        total_epochs: how many there will be; None when that is open.
        stream: where to print; standard output by default.
        quiet: no epoch lines and no bar. Notes are still printed: they carry warnings.
    """

    def __init__(self, total_epochs: int | None = None, stream: TextIO | None = None, quiet: bool = False) -> None:
        self._total = total_epochs
        self._stream = sys.stdout if stream is None else stream
        self._quiet = quiet
        self._seconds: deque[float] = deque(maxlen=_ETA_EPOCHS)
        self._sampler = ResourceSampler()
        watched = not quiet and self._stream.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")
        self._console = Console(file=self._stream, highlight=False) if watched else None
        self._bar: tuple[Progress, TaskID] | None = None
        self._redraw_at = 0.0
        self._rate_from = (0.0, 0)
        atexit.register(self.close)  # a bar left open would leave the cursor hidden

    def step(self, epoch: int, step: int, steps_per_epoch: int | None, loss: SupportsFloat | None = None) -> None:
        """Step `step` (from 1) of `epoch` is done. Nearly free: redraws ten times a second, and only then reads `loss`."""
        if self._console is None:
            return
        now = time.monotonic()
        if now < self._redraw_at:
            return
        self._redraw_at = now + _REDRAW_SECONDS
        self._draw(self._console, now, epoch, step, steps_per_epoch, loss)

    def epoch(self, number: int, metrics: Mapping[str, float], seconds: float, nan_count: int = 0) -> None:
        """Epoch `number` (from 1) is done after `seconds`; `nan_count` of its losses were NaN."""
        self._erase_bar()
        self._seconds.append(seconds)
        if self._quiet:
            return
        shown = [f"{format_name(name)}={format_value(value)}" for name, value in list(metrics.items())[:_MAX_METRICS]]
        if len(metrics) > _MAX_METRICS:
            shown.append(f"(+{len(metrics) - _MAX_METRICS} more)")
        if nan_count:
            shown.append(f"nan={nan_count}")
        values = "  ".join([self._position(number), *shown])
        times = "  ".join([format_duration(seconds), *self._eta(number)])
        self._print(Text(values).append(f"  [{times}]", style="cyan").append(f"  {self._memory()}", style="dim"))

    def note(self, text: str) -> None:
        """One line on standard error, above the bar."""
        self._erase_bar()
        line = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
        _write(sys.stderr, line)

    def close(self) -> None:
        """Takes the bar away. May be called twice."""
        self._erase_bar()
        self._sampler.close()
        atexit.unregister(self.close)

    def _position(self, number: int) -> str:
        if self._total is None:
            return f"epoch   {number}"
        return f"epoch {number:{len(str(self._total))}}/{self._total}"

    def _eta(self, number: int) -> list[str]:
        """The median of the last epochs for each one left: one slow epoch (the first, a checkpoint) does not move it."""
        if self._total is None:
            return []
        left = max(self._total - number, 0)
        return [f"ETA {format_duration(left * statistics.median(self._seconds))}"]

    def _memory(self) -> str:
        memory = f"RAM {format_gigabytes(self._sampler.rss_bytes(), self._sampler.ram()[1])}"
        gpus = self._sampler.gpus()
        if gpus:  # the fullest one is the first to run out
            gpu = max(gpus, key=lambda g: g.vram_used_bytes / g.vram_total_bytes)
            memory += f"  VRAM {format_gigabytes(gpu.vram_used_bytes, gpu.vram_total_bytes)}"
        return memory

    def _print(self, line: Text) -> None:
        if self._console is None:
            _write(self._stream, line.plain)
        else:
            self._console.print(line, soft_wrap=True)

    def _draw(
        self, console: Console, now: float, epoch: int, step: int, steps: int | None, loss: SupportsFloat | None
    ) -> None:
        if self._bar is None:
            self._rate_from = now, step
        since, first = self._rate_from
        state = f"{step}/{steps}" if steps else f"{step}"
        if step > first and now > since:
            rate = (step - first) / (now - since)
            state += f"  {rate:.0f} steps/s" if rate >= 100 else f"  {rate:.3g} steps/s"
        if loss is not None:
            state += f"  loss={format_value(float(loss))}"
        if self._bar is None:
            progress = _step_bar(console)
            task = progress.add_task("", completed=step, total=steps, position=self._position(epoch), state=state)
            self._bar = progress, task
            progress.start()
        else:
            progress, task = self._bar
            progress.update(task, completed=step, total=steps, position=self._position(epoch), state=state)
            progress.refresh()

    def _erase_bar(self) -> None:
        if self._bar is not None:
            bar, self._bar = self._bar[0], None
            bar.stop()


def _step_bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.fields[position]}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[state]}", markup=False),
        console=console,
        auto_refresh=False,  # no thread of its own
        transient=True,
        redirect_stderr=sys.stderr.isatty(),  # a file that standard error goes to keeps getting it
    )


def _write(stream: TextIO, line: str) -> None:
    """One line, at once; a character that the stream's encoding lacks is written as its escape."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    stream.write(line.encode(encoding, "backslashreplace").decode(encoding) + "\n")
    stream.flush()
