"""A run in other formats: every point as CSV, a log for people, TensorBoard's event files."""

from __future__ import annotations

import contextlib
import csv
import importlib
import itertools
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from flodl.errors import StoreError
from flodl.monitor.format import format_duration, format_value, one_line
from flodl.monitor.rows import EpochRow, EventRow
from flodl.monitor.schema import store_error
from flodl.monitor.store import RunView
from flodl.monitor.values import dumps

__all__ = ["export_csv", "export_tensorboard", "replacing", "write_log"]

_POINTS_AT_ONCE = 20_000


def export_csv(run: Path | str, path: Path | str) -> None:
    """Writes every point of the run in folder `run`: series, rank, step, epoch, time (seconds since 1970), value.

    Values are written so that reading them gives the same number; what is not finite is `nan`, `inf` or `-inf`.

    Raises:
        StoreError: the store cannot be read, or `path` not be written.
    """
    with RunView(run) as view, replacing(path) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("series", "rank", "step", "epoch", "time", "value"))
        for point in _points(view):
            writer.writerow((point.name, point.rank, point.step, point.epoch, repr(point.time), repr(point.value)))


def write_log(run: Path | str, path: Path | str) -> None:
    """Writes what happened in the run in folder `run`, a line each: its beginning, configuration, epochs, events, its end.

    Raises:
        StoreError: the store cannot be read, or `path` not be written.
    """
    with RunView(run) as view, replacing(path) as file, view.snapshot():
        info = view.info()
        file.write(f"run {info.run_id}{f': {one_line(info.name)}' if info.name else ''}\n")
        file.write(f"{_when(info.started)}  started: {one_line(info.command)}\n")
        if info.git_commit:
            file.write(f"  git commit: {info.git_commit}{' with changes' if info.git_dirty else ''}\n")
        for name, version in info.versions.items():
            file.write(f"  {one_line(name)}: {one_line(version)}\n")
        for field, setting in view.config().items():
            origin = f"  ({one_line(setting.origin)})" if setting.origin else ""
            file.write(f"  {one_line(field)} = {dumps(setting.value)}{origin}\n")
        happened: list[EpochRow | EventRow] = [*view.epochs(), *(e for e in view.events() if e.kind != "steps")]
        for row in sorted(happened, key=lambda row: row.id):
            file.write(f"{_when(row.time)}  {_epoch(row) if isinstance(row, EpochRow) else _event(row)}\n")
        if info.state != "running":
            end = info.heartbeat if info.ended is None else info.ended
            error = f": {one_line(info.error)}" if info.error else ""
            file.write(f"{_when(end)}  {info.state} after {format_duration(end - info.started)}{error}\n")


def export_tensorboard(run: Path | str, folder: Path | str) -> None:
    """Writes every point of the run in folder `run` as event files for TensorBoard, one subfolder for each rank but 0.

    Needs the package `tensorboard`.

    Raises:
        StoreError: `tensorboard` is not installed, the store cannot be read, or `folder` is not empty or not be written.
    """
    try:
        records: Any = importlib.import_module("tensorboard.summary.writer.record_writer")
        events: Any = importlib.import_module("tensorboard.compat.proto.event_pb2")
        summaries: Any = importlib.import_module("tensorboard.compat.proto.summary_pb2")
    except ImportError as error:
        raise StoreError(
            f"TensorBoard's files need the package tensorboard: pip install tensorboard ({error})"
        ) from error
    target = Path(folder)
    with RunView(run) as view, contextlib.ExitStack() as opened:
        by_rank: dict[int, Any] = {}
        try:
            if target.exists() and any(target.iterdir()):
                raise StoreError(f"{target} is not empty: TensorBoard would show what is there as the same run")
            # What was measured together is one event.
            for (rank, step, when), points in itertools.groupby(_points(view), lambda p: (p.rank, p.step, p.time)):
                if rank not in by_rank:
                    place = target / f"rank{rank}" if rank else target
                    place.mkdir(parents=True, exist_ok=True)
                    file = open(place / f"events.out.tfevents.{int(view.info().started)}.flodl", "xb")  # noqa: SIM115
                    by_rank[rank] = records.RecordWriter(opened.enter_context(file))
                    first = events.Event(wall_time=when, file_version="brain.Event:2")
                    by_rank[rank].write(first.SerializeToString())
                values = [summaries.Summary.Value(tag=point.name, simple_value=point.value) for point in points]
                event = events.Event(wall_time=when, step=step, summary=summaries.Summary(value=values))
                by_rank[rank].write(event.SerializeToString())
        except OSError as error:
            raise store_error(target, error) from error


@contextlib.contextmanager
def replacing(path: Path | str) -> Iterator[IO[str]]:
    """A text file that takes the place of `path` when it was written completely, and leaves it alone otherwise.

    Raises:
        StoreError: it cannot be written.
    """
    target = Path(path)
    unfinished = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        # os.open and not tempfile: the file gets the permissions of any new file.
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            with open(descriptor, "w", encoding="utf-8", newline="") as file:
                yield file
            os.replace(unfinished, target)
        except BaseException:
            unfinished.unlink()
            raise
    except OSError as error:
        raise StoreError(f"cannot write {target}: {error.strerror or error}") from error


def _points(view: RunView) -> Iterator[Any]:
    since = 0
    while points := view.points(since=since, limit=_POINTS_AT_ONCE):
        yield from points
        since = points[-1].id


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def _epoch(epoch: EpochRow) -> str:
    took = "" if epoch.seconds is None else f"  [{format_duration(epoch.seconds)}]"
    values = "  ".join(f"{one_line(name)}={format_value(value)}" for name, value in epoch.metrics.items())
    return f"epoch {epoch.number + 1}, step {epoch.step}  {values}{took}"


def _event(event: EventRow) -> str:
    step = "" if event.step is None else f", step {event.step}"
    rank = f", rank {event.rank}" if event.rank else ""
    took = "" if event.seconds is None else f"  [{format_duration(event.seconds)}]"
    data = "  ".join(f"{one_line(name)}={dumps(value)}" for name, value in event.data.items())
    return f"{one_line(event.kind)}{step}{rank}  {data}{took}".rstrip()
