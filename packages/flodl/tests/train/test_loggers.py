"""Loggers read back with the readers of what they write: csv, TensorBoard's, MLflow's, Weights & Biases' own."""

from __future__ import annotations

import csv
import json
import math
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD

import flodl as fl
from flodl.train import loggers
from flodl.train.loggers import Logger, Point

CONFIG = {"training": {"batch_size": 64, "name": "a, b"}, "seed": 3}


def moment(
    step: int, epoch: int = 0, lr: float | tuple[float, ...] = 0.5, folder: Path | None = None, **metrics: Any
) -> fl.FitState:
    return fl.FitState(
        epoch=epoch, step=step, sample=0, total_epochs=None, total_steps=None, metrics=metrics,
        learning_rates=lr if isinstance(lr, tuple) else (lr,),
        model=nn.Identity(), optimizer=SGD([nn.Parameter(torch.zeros(1))], lr=0.5), folder=folder or Path.cwd(),
    )  # fmt: skip


CONTROL = fl.Control()


def drive(logger: Logger, steps: Iterable[int], *, start: int = 0, end: bool = True) -> None:
    """An epoch has 3 updates, then an evaluation. The loss is 1 / step."""
    logger.on_fit_start(moment(start), CONTROL)
    for step in steps:
        epoch = (step - 1) // 3
        logger.on_step_end(
            moment(step, epoch, 0.5 if step < 4 else 0.25, loss=torch.tensor(1.0 / step, dtype=torch.float64)), CONTROL
        )
        if step % 3 == 0:
            logger.on_eval_end(moment(step, epoch, test_loss=2.0 / step), CONTROL)
            logger.on_epoch_end(moment(step, epoch, loss=0.1, test_loss=2.0 / step), CONTROL)
    if end:
        logger.on_fit_end(moment(step), CONTROL)


def expected(steps: int) -> set[tuple[str, float, int]]:
    points = {("loss", 1.0 / s, s) for s in range(1, steps + 1)} | {("lr", 0.5, 1)}
    if steps > 3:
        points.add(("lr", 0.25, 4))
    for s in range(3, steps + 1, 3):
        points |= {("test_loss", 2.0 / s, s), ("epoch/loss", 0.1, s)}
    return points


def rows(path: Path) -> list[tuple[str, float, int]]:
    with path.open(newline="") as file:
        return [(row["name"], float(row["value"]), int(row["step"])) for row in csv.DictReader(file)]


# -- CSV


def test_csv_has_every_point_once(tmp_path: Path) -> None:
    drive(loggers.CSV(config=CONFIG), range(1, 8))
    found = rows(tmp_path / "metrics.csv")
    assert set(found) == expected(7)
    assert len(found) == len(expected(7))
    assert json.loads((tmp_path / "metrics.json").read_text()) == {
        "training.batch_size": 64,
        "training.name": "a, b",
        "seed": 3,
    }
    with (tmp_path / "metrics.csv").open(newline="") as file:
        assert [r["epoch"] for r in csv.DictReader(file) if r["name"] == "test_loss"] == ["0", "1"]


@pytest.mark.parametrize("seen", [4, 5, 6, 8])
@pytest.mark.parametrize("torn", ["", "loss,0.1", "loss,0.125,9,2,17", '"a\n'])
def test_csv_is_cut_where_training_goes_on(seen: int, torn: str, tmp_path: Path) -> None:
    first = loggers.CSV()
    drive(first, range(1, seen + 1), end=False)  # killed after it, but saved after step 4
    first.on_exception(moment(seen), CONTROL, KeyboardInterrupt())
    with (tmp_path / "metrics.csv").open("a") as file:
        file.write(torn)
    second = loggers.CSV()
    second.load_state_dict(first.state_dict())
    drive(second, range(5, 8), start=4)
    found = rows(tmp_path / "metrics.csv")
    assert set(found) == expected(7)
    assert len(found) == len(set(found))


def test_what_the_resumed_step_was_told_already_is_not_told_twice(tmp_path: Path) -> None:
    """Saved after step 3, killed after the evaluation that follows: it is made again."""
    drive(loggers.CSV(), range(1, 4))
    second = loggers.CSV()
    second.on_fit_start(moment(3), CONTROL)
    second.on_eval_end(moment(3, test_loss=2 / 3, test_accuracy=0.5), CONTROL)
    second.on_fit_end(moment(3), CONTROL)
    found = rows(tmp_path / "metrics.csv")
    assert set(found) == expected(3) | {("test_accuracy", 0.5, 3)}
    assert len(found) == len(set(found))


def test_a_metric_may_come_later_and_have_any_name_and_value(tmp_path: Path) -> None:
    logger = loggers.CSV(tmp_path / "x.csv")
    logger.on_fit_start(moment(0), CONTROL)
    logger.on_step_end(moment(1, loss=math.nan), CONTROL)
    logger.on_eval_end(moment(1, **{'a,"b"\nc': -math.inf, "exact": 0.1 + 0.2}), CONTROL)
    logger.on_fit_end(moment(1), CONTROL)
    found = {name: value for name, value, _ in rows(tmp_path / "x.csv")}
    assert math.isnan(found["loss"])
    assert found['a,"b"\nc'] == -math.inf
    assert found["exact"] == 0.1 + 0.2
    again = loggers.CSV(tmp_path / "x.csv")
    again.on_fit_start(moment(1), CONTROL)
    again.on_fit_end(moment(1), CONTROL)
    assert len(rows(tmp_path / "x.csv")) == len(found)


def test_an_evaluation_before_or_after_training_is_logged_too(tmp_path: Path) -> None:
    logger = loggers.CSV(tmp_path / "x.csv")
    logger.on_eval_end(moment(0, test_loss=9.0), CONTROL)
    drive(logger, range(1, 4))
    logger.on_eval_end(moment(3, final_loss=8.0), CONTROL)
    found = rows(tmp_path / "x.csv")
    assert set(found) == expected(3) | {("test_loss", 9.0, 0), ("final_loss", 8.0, 3)}
    assert len(found) == len(set(found))
    logger.on_step_end(moment(4, 1, 0.25, loss=0.25), CONTROL)  # a loop that was not said to begin
    logger.on_fit_end(moment(4), CONTROL)
    assert ("loss", 0.25, 4) in rows(tmp_path / "x.csv")


def test_a_file_of_another_training_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    drive(loggers.CSV(path), [1])
    with pytest.raises(fl.ConfigError, match=r"x\.csv exists already: a new training needs another file"):
        drive(loggers.CSV(path), [1])
    path.write_text("date,temperature\n1,2\n")
    with pytest.raises(fl.ConfigError, match=r"is no table of metrics: its first row is 'date,temperature'"):
        drive(loggers.CSV(path), [2], start=1)
    assert path.read_text() == "date,temperature\n1,2\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_is_told_with_the_place(tmp_path: Path) -> None:
    logger = loggers.CSV(tmp_path / "x.csv")
    logger.on_fit_start(moment(0), CONTROL)
    (tmp_path / "x.csv").unlink()
    (tmp_path / "x.csv").symlink_to("/dev/full")
    with pytest.raises(fl.StoreError, match=r"cannot log to .*x\.csv"):
        logger.on_eval_end(moment(1, a=1.0), CONTROL)
    (tmp_path / "x.csv").unlink()
    (tmp_path / "x.csv").touch()
    logger.on_fit_end(moment(1), CONTROL)


def test_some_steps_only_and_several_groups(tmp_path: Path) -> None:
    logger = loggers.CSV(every=3)
    logger.on_fit_start(moment(0), CONTROL)
    for step in range(1, 8):
        logger.on_step_end(moment(step, lr=(0.5, 0.25), loss=1.0), CONTROL)
    logger.on_fit_end(moment(7), CONTROL)
    assert rows(tmp_path / "metrics.csv") == [
        ("loss", 1.0, 3), ("lr/0", 0.5, 3), ("lr/1", 0.25, 3), ("loss", 1.0, 6)
    ]  # fmt: skip
    with pytest.raises(fl.ConfigError, match="every is 0"):
        loggers.CSV(every=0)
    nowhere = fl.FitState(**{**vars(moment(0)), "folder": None})
    with pytest.raises(fl.ConfigError, match=r"has no folder: tell loggers\.CSV where to write"):
        loggers.CSV().on_fit_start(nowhere, CONTROL)


def test_a_logger_of_ones_own() -> None:
    class Printed(Logger):
        def __init__(self) -> None:
            super().__init__()
            self.told: list[Any] = []

        def open(self, folder: Path | None, step: int) -> None:
            self.told.append(("open", step))

        def write(self, points: list[Point]) -> None:
            self.told += [tuple(p[:4]) for p in points]

        def close(self, ok: bool) -> None:
            self.told.append(("close", ok))

    logger = Printed()
    drive(logger, [1], end=False)
    logger.on_exception(moment(1), CONTROL, ValueError())
    logger.on_fit_end(moment(1), CONTROL)  # nothing is open any more
    assert logger.told == [("open", 0), ("loss", 1.0, 1, 0), ("lr", 0.5, 1, 0), ("close", False)]


def test_a_trainer_that_is_resumed_writes_the_points_of_one_that_is_not(tmp_path: Path) -> None:
    def train(name: str, stop: int | None, resume: str | None = None) -> Path:
        torch.manual_seed(1)
        model = nn.Linear(4, 1)
        optimizer = SGD(model.parameters(), lr=0.1)
        data = (torch.randn(40, 4), torch.randn(40, 1))
        trainer = fl.Trainer.setup(
            model, optimizer, data, batch_size=8, quiet=True, folder=name, resume=resume,
            callbacks=[loggers.CSV()], scheduler="cosine",
        )  # fmt: skip
        with trainer:
            for _ in trainer.epochs(3):
                for x, y in trainer.batches():
                    trainer.step(nn.functional.mse_loss(trainer.model(x), y))
                    if trainer.global_step == stop:
                        trainer.stop()
                if not trainer.stopped:
                    trainer.evaluate(data, lambda m, b: {"loss": nn.functional.mse_loss(m(b[0]), b[1])})
            assert trainer.run.folder
            return trainer.run.folder

    whole = rows(train("whole", None) / "metrics.csv")
    folder = train("halves", 8)
    assert rows(folder / "metrics.csv") != whole
    assert train("halves", None, resume=str(folder)) == folder
    assert sorted(rows(folder / "metrics.csv")) == sorted(whole)
    assert {n for n, _, _ in whole} == {"loss", "lr", "test_loss", "epoch/loss"}


# -- TensorBoard


def scalars(folder: Path) -> set[tuple[str, float, int]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder))
    accumulator.Reload()
    return {
        (tag, round(event.value, 6), event.step)
        for tag in accumulator.Tags()["scalars"]
        for event in accumulator.Scalars(tag)
    }


def test_tensorboard_reads_every_point_and_none_beyond_a_resumed_step(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the package tensorboard is not installed")
    first = loggers.TensorBoard(config=CONFIG)
    drive(first, range(1, 8))
    rounded = {(n, round(v, 6), s) for n, v, s in expected(7)}
    assert scalars(tmp_path / "tensorboard") == rounded
    second = loggers.TensorBoard()
    second.load_state_dict(first.state_dict())
    drive(second, [5], start=4)
    assert scalars(tmp_path / "tensorboard") == {p for p in rounded if p[2] <= 5}


# -- in a process of their own: they start threads and processes that end with it


def in_a_process(body: str, folder: Path, **env: str) -> str:
    script = folder / "script.py"
    script.write_text(
        "import sys\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from test_loggers import *\n" + textwrap.dedent(body)
    )
    quiet = {"WANDB_ERROR_REPORTING": "false", "MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
    done = subprocess.run(
        [sys.executable, str(script)], cwd=folder, env={**os.environ, **quiet, **env}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_mlflow_has_every_point_once_also_after_a_resume(tmp_path: Path) -> None:
    pytest.importorskip("mlflow", reason="the package mlflow-skinny is not installed")
    body = """
    from mlflow.tracking import MlflowClient
    uri = Path("store").absolute().as_uri()
    first = loggers.MLflow("digits", uri=uri, config=CONFIG)
    drive(first, range(1, 8))
    second = loggers.MLflow("digits", uri=uri, config=CONFIG)
    second.load_state_dict(first.state_dict())
    drive(second, range(5, 10), start=4)  # 5 to 7 for the second time
    client = MlflowClient(uri)
    (run,) = client.search_runs([client.get_experiment_by_name("digits").experiment_id])
    found = [(n, m.value, m.step) for n in run.data.metrics for m in client.get_metric_history(run.info.run_id, n)]
    assert set(found) == expected(9), set(found) ^ expected(9)
    assert len(found) == len(set(found))
    assert run.data.params == {"training.batch_size": "64", "training.name": "a, b", "seed": "3"}
    assert run.info.status == "FINISHED"
    third = loggers.MLflow("digits", uri=uri)
    drive(third, [1], end=False)
    third.on_exception(moment(1), CONTROL, ValueError())
    failed = client.search_runs(["0", run.info.experiment_id], "attributes.status = 'FAILED'")
    print(len(failed), failed[0].info.run_name == Path.cwd().name)
    """
    assert in_a_process(body, tmp_path, MLFLOW_ALLOW_FILE_STORE="true").split() == ["1", "True"]


def test_wandb_has_every_point(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="the package wandb is not installed")
    body = """
    import wandb
    from wandb.proto import wandb_internal_pb2
    logger = loggers.WandB(config=CONFIG, project="digits", mode="offline", settings=wandb.Settings(silent=True))
    drive(logger, range(1, 8))
    wandb.teardown()  # its own process may still be writing after `finish`, until it ends
    (path,) = Path("wandb").glob("offline-run-*/*.wandb")
    assert path.stem == f"run-{logger.state_dict()['id']}"
    data, at, found, config = path.read_bytes(), 7, set(), {}
    assert len(data) < 2**15  # one block of LevelDB's log: records of checksum, length, kind, content
    while at < len(data):
        size = int.from_bytes(data[at + 4 : at + 6], "little")
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data[at + 7 : at + 7 + size])
        at += 7 + size
        if record.HasField("run"):
            config.update({c.key: json.loads(c.value_json) for c in record.run.config.update if c.key[0] != "_"})
        if record.HasField("history"):
            items = {(i.key or ".".join(i.nested_key)): json.loads(i.value_json) for i in record.history.item}
            found |= {(k, v, items["_step"]) for k, v in items.items() if k[0] != "_" and k != "epoch"}
    assert found == expected(7), found ^ expected(7)
    assert config == {"training.batch_size": 64, "training.name": "a, b", "seed": 3}, config
    resumed = loggers.WandB(project="digits", mode="offline", settings=wandb.Settings(silent=True))
    resumed.load_state_dict(logger.state_dict())
    path.parent.rename("first")  # the folders of two sessions within a second have one name
    drive(resumed, range(5, 8), start=4)
    assert [p.name for p in Path("wandb").glob("offline-run-*/*.wandb")] == [path.name]
    print("whole")
    """
    assert in_a_process(body, tmp_path).split() == ["whole"]


@pytest.mark.parametrize(
    ("name", "package", "install"),
    [("TensorBoard", "tensorboard", "tensorboard"), ("WandB", "wandb", "wandb"), ("MLflow", "mlflow", "mlflow-skinny")],
)
def test_a_missing_package_is_named_when_the_logger_is_made(
    name: str, package: str, install: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)  # Python's own way to say that it cannot be imported
    with pytest.raises(fl.ConfigError, match=rf"loggers\.{name} needs a package: pip install {install}"):
        getattr(loggers, name)()


def test_nothing_heavy_is_imported_before() -> None:
    code = "import flodl.train.loggers, sys; print(*{'tensorboard', 'wandb', 'mlflow'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
