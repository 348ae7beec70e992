"""Callbacks that write a training's numbers elsewhere: a CSV file, TensorBoard, Weights & Biases, MLflow.

The run store (`run.db`) is always written without them. Each logs the metrics of the steps, the results of evaluations, the
means of the epochs as `epoch/<name>`, the learning rates where they change as `lr`, and the configuration that it is given.
A resumed training goes on where it was resumed, without a point twice.
"""

from __future__ import annotations

import atexit
import csv
import importlib
import io
import itertools
import json
import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from flodl.checkpoint.atomic import write_atomically
from flodl.errors import ConfigError, StoreError
from flodl.train.callbacks import Callback, Control, FitState
from flodl.train.metrics import Meter

__all__ = ["CSV", "Logger", "MLflow", "Point", "TensorBoard", "WandB"]

_SECONDS = 0.2  # how often the numbers of steps are read from the device, all at once


class Point(NamedTuple):
    """One number; `time` in seconds since 1970."""

    name: str
    value: float
    step: int
    epoch: int
    time: float


class Logger(Callback, ABC):
    """Collects the points of a training. A logger of your own says where they go.

    config: nested or dotted names -> values, logged once. every: log the metrics of every so many steps.
    """

    def __init__(self, *, config: Mapping[str, Any] | None = None, every: int = 1) -> None:
        if every < 1:
            raise ConfigError(f"every is {every}; it must be at least 1")
        self.config = dict(_flat(config or {}))
        self.every = every
        self._meter = Meter()
        self._epoch = 0
        self._next_write = 0.0
        self._rates: tuple[float, ...] = ()
        self._evaluated: set[str] = set()
        self._is_open = False

    @abstractmethod
    def open(self, folder: Path | None, step: int) -> None:
        """Begin, or go on after `step` steps. folder: the run's, if it has one."""

    @abstractmethod
    def write(self, points: list[Point]) -> None:
        """Log some points, in order of their steps."""

    @abstractmethod
    def close(self, ok: bool) -> None:
        """End; `ok` unless training failed."""

    def on_fit_start(self, state: FitState, control: Control) -> None:
        self._end(True)
        self.open(state.folder, state.step)
        self._is_open = True
        atexit.register(self._end, True)

    def on_step_end(self, state: FitState, control: Control) -> None:
        if not self._is_open:
            self.on_fit_start(state, control)
        if state.step % self.every:
            return
        self._epoch = state.epoch
        for name, value in state.metrics.items():
            self._meter.add(state.step, 1, name, value)
        if (rates := state.learning_rates) != self._rates:
            self._rates = rates
            for number, rate in enumerate(rates):
                self._meter.add(state.step, 1, "lr" if len(rates) == 1 else f"lr/{number}", rate)
        if time.monotonic() >= self._next_write:
            self._write_steps()

    def on_eval_end(self, state: FitState, control: Control) -> None:
        self._evaluated.update(state.metrics)
        self._write(state, state.metrics)

    def on_epoch_end(self, state: FitState, control: Control) -> None:
        self._write(state, {f"epoch/{k}": v for k, v in state.metrics.items() if k not in self._evaluated})

    def on_fit_end(self, state: FitState, control: Control) -> None:
        self._end(True)

    def on_exception(self, state: FitState, control: Control, error: BaseException) -> None:
        self._end(False)

    def state_dict(self) -> dict[str, Any]:
        return {"evaluated": sorted(self._evaluated), "rates": list(self._rates)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._evaluated, self._rates = set(state["evaluated"]), tuple(state["rates"])

    def _write_steps(self) -> None:
        self._next_write = time.monotonic() + _SECONDS
        now = time.time()
        if points := [Point(name, value, step, self._epoch, now) for step, name, value in self._meter.drain()]:
            self.write(points)

    def _write(self, state: FitState, metrics: Mapping[str, Any]) -> None:
        now = time.time()
        points = [Point(name, float(value), state.step, state.epoch, now) for name, value in metrics.items()]
        if self._is_open:
            self._write_steps()
            if points:
                self.write(points)
        elif points:  # an evaluation before or after training
            self.open(state.folder, state.step)
            try:
                self.write(points)
            finally:
                self.close(True)

    def _end(self, ok: bool) -> None:
        if self._is_open:
            self._is_open = False
            atexit.unregister(self._end)
            try:
                self._write_steps()
            finally:
                self.close(ok)


class CSV(Logger):
    """A table `name,value,step,epoch,time`, one row a point, so that a metric may come later than others.

    path: `metrics.csv` in the run's folder without it. The configuration is written next to it, as JSON. Rows are
    appended whole; on a resume those after the resumed step are cut off.
    """

    HEADER = ("name", "value", "step", "epoch", "time")

    def __init__(
        self, path: str | os.PathLike[str] | None = None, *, config: Mapping[str, Any] | None = None, every: int = 1
    ) -> None:
        super().__init__(config=config, every=every)
        self._given = None if path is None else Path(path)
        self._path: Path | None = None
        self._kept: set[tuple[str, int]] = set()  # (name, step) of the rows of the step that training goes on after

    def open(self, folder: Path | None, step: int) -> None:
        path = self._given or _inside(folder, "metrics.csv", self)
        rows: list[list[str]] = []
        if path.exists():
            if self._given and self._path is None and not step:
                raise ConfigError(f"{path} exists already: a new training needs another file, or remove it")
            rows = self._rows(path, step)
        self._path = path
        self._kept = {(row[0], step) for row in rows if int(row[2]) == step}
        write_atomically(path, lambda file: file.write(_lines([self.HEADER, *rows])))
        if self.config:
            text = json.dumps(self.config, indent=1, default=str)
            write_atomically(path.with_suffix(".json"), lambda file: file.write(text.encode()))

    def write(self, points: list[Point]) -> None:
        assert self._path
        # one write at the end of the file: whole rows also when the process is killed
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND)
        try:
            size, data = os.fstat(descriptor).st_size, _lines(p for p in points if (p.name, p.step) not in self._kept)
            try:
                if (written := os.write(descriptor, data)) < len(data):
                    raise OSError(f"only {written} of {len(data)} bytes were written; is the disk full?")
            except OSError as error:
                with suppress(OSError):  # the first error is the one to be told
                    os.ftruncate(descriptor, size)
                raise StoreError(f"cannot log to {self._path}: {error}") from error
        finally:
            os.close(descriptor)

    def close(self, ok: bool) -> None:
        pass

    def _rows(self, path: Path, step: int) -> list[list[str]]:
        """The rows up to `step`. A last row without its end is what a kill left of it."""
        text = path.read_bytes()
        whole = text[: text.rfind(b"\n") + 1].decode()
        rows = list(csv.reader(io.StringIO(whole, newline="")))
        if rows and tuple(rows[0]) != self.HEADER:
            raise ConfigError(f"{path} is no table of metrics: its first row is {','.join(rows[0])!r}")
        return [row for row in rows[1:] if len(row) == len(self.HEADER) and int(row[2]) <= step]


class TensorBoard(Logger):
    """Event files for TensorBoard (`pip install tensorboard`).

    folder: `tensorboard` in the run's folder without it. On a resume TensorBoard itself leaves out the points after the
    resumed step, which are still in the older file.
    """

    def __init__(
        self, folder: str | os.PathLike[str] | None = None, *, config: Mapping[str, Any] | None = None, every: int = 1
    ) -> None:
        super().__init__(config=config, every=every)
        _need("tensorboard", self)
        self._make: Any = importlib.import_module("torch.utils.tensorboard").SummaryWriter
        self._given = None if folder is None else Path(folder)
        self._writer: Any = None

    def open(self, folder: Path | None, step: int) -> None:
        path = self._given or _inside(folder, "tensorboard", self)
        self._writer = self._make(str(path), purge_step=step + 1 if step else None)
        if self.config:
            table = [f"|{name}|{value}|" for name, value in self.config.items()]
            self._writer.add_text("configuration", "\n".join(["|setting|value|", "|---|---|", *table]), step)

    def write(self, points: list[Point]) -> None:
        for point in points:
            self._writer.add_scalar(point.name, point.value, point.step, walltime=point.time)

    def close(self, ok: bool) -> None:
        self._writer.close()


class WandB(Logger):
    """A run in Weights & Biases (`pip install wandb`).

    init: arguments for `wandb.init`, such as `project="digits"` or `mode="offline"`. A resumed training goes on with its
    run. Weights & Biases keeps the first value of each step: an exact resume computes the same again.
    """

    def __init__(self, *, config: Mapping[str, Any] | None = None, every: int = 1, **init: Any) -> None:
        super().__init__(config=config, every=every)
        self._wandb: Any = _need("wandb", self)
        self._init = init
        self._id: str | None = init.pop("id", None)
        self._run: Any = None

    def open(self, folder: Path | None, step: int) -> None:
        where = {} if folder is None else {"dir": str(folder), "name": folder.name}
        settings = {**where, "resume": "allow", **self._init}
        self._run = self._wandb.init(id=self._id, config=self.config or None, **settings)
        self._id = self._run.id

    def write(self, points: list[Point]) -> None:
        for step, of_step in itertools.groupby(points, lambda point: point.step):
            self._run.log({"epoch": points[0].epoch, **{p.name: p.value for p in of_step}}, step=step)

    def close(self, ok: bool) -> None:
        self._run.finish(exit_code=0 if ok else 1)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "id": self._id}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._id = state["id"]


class MLflow(Logger):
    """A run in MLflow (`pip install mlflow-skinny`, or the whole `mlflow`).

    uri: of the tracking server, a folder or a database; MLflow's own setting without it. experiment: made when missing.
    A resumed training goes on with its run and does not log again what that has already.
    """

    def __init__(
        self,
        experiment: str = "flodl",
        *,
        uri: str | None = None,
        name: str | None = None,
        config: Mapping[str, Any] | None = None,
        every: int = 1,
    ) -> None:
        super().__init__(config=config, every=every)
        _need("mlflow", self, install="mlflow-skinny")
        self._entities: Any = importlib.import_module("mlflow.entities")
        self._make: Any = importlib.import_module("mlflow.tracking").MlflowClient
        self._experiment, self._uri, self._name = experiment, uri, name
        self._client: Any = None
        self._id: str | None = None
        self._last: dict[str, int] | None = None  # after a resume, the last step that each metric has

    def open(self, folder: Path | None, step: int) -> None:
        self._client = client = self._make(self._uri)
        if self._id is not None:
            client.update_run(self._id, status="RUNNING")
            self._last = {}
            return
        found = client.get_experiment_by_name(self._experiment)
        experiment = found.experiment_id if found else client.create_experiment(self._experiment)
        name = self._name or (folder.name if folder else None)
        self._id = client.create_run(experiment, run_name=name).info.run_id
        texts = [self._entities.Param(_key(name), str(value)[:6000]) for name, value in self.config.items()]
        for at in range(0, len(texts), 100):  # MLflow's limits: 100 parameters a call, 1000 metrics
            client.log_batch(self._id, params=texts[at : at + 100])

    def write(self, points: list[Point]) -> None:
        metrics = [
            self._entities.Metric(_key(p.name), p.value, int(p.time * 1000), p.step) for p in points if self._new(p)
        ]
        for at in range(0, len(metrics), 1000):
            self._client.log_batch(self._id, metrics=metrics[at : at + 1000])

    def close(self, ok: bool) -> None:
        self._client.set_terminated(self._id, "FINISHED" if ok else "FAILED")

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "id": self._id}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._id = state["id"]

    def _new(self, point: Point) -> bool:
        if self._last is None:
            return True
        key = _key(point.name)
        if key not in self._last:
            steps = [metric.step for metric in self._client.get_metric_history(self._id, key)]
            self._last[key] = max(steps, default=-1)
        return point.step > self._last[key]


def _need(package: str, logger: Logger, install: str | None = None) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        name = type(logger).__name__
        raise ConfigError(f"loggers.{name} needs a package: pip install {install or package} ({error})") from error


def _inside(folder: Path | None, name: str, logger: Logger) -> Path:
    if folder is None:
        raise ConfigError(
            f"the run is not recorded and has no folder: tell loggers.{type(logger).__name__} where to write"
        )
    return folder / name


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _lines(rows: Iterable[Iterable[Any]]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def _key(name: str) -> str:
    """MLflow allows no other characters in a name."""
    return re.sub(r"[^\w\-. /]", "_", name)
