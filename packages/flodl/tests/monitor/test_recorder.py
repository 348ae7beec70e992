"""One recorder in this process: what is recorded is what is read."""

from __future__ import annotations

import math
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

from flodl.errors import StoreError
from flodl.monitor import Recorder, RunView, list_runs, request


def eventually(condition: Callable[[], object], seconds: float = 30.0) -> object:
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "never came true"
        time.sleep(0.01)
    return found


def test_a_run_is_read_back_as_it_was_recorded(tmp_path: Path) -> None:
    with Recorder(
        tmp_path / "new" / "runs",
        name="digits",
        config={"optimizer": {"lr": 0.1, "betas": (0.9, 0.999)}, "data": tmp_path, "clip": math.inf, "none": {}},
        origins={"optimizer.lr": "fdl.yml:12"},
        hardware={"cuda": None},
        seeds={"torch": 7},
        total_epochs=2,
    ) as recorder:
        recorder.totals(steps=20)
        recorder.metric("loss", 1.5, step=1, epoch=1)
        recorder.metrics(2, {"loss": 1.25, "lr": 0.1}, epoch=1, rank=3)
        recorder.epoch(1, {"loss": 1.375, "acc": math.nan}, seconds=0.5)
        recorder.event("sync", seconds=0.25, bytes=10, spread=math.nan)
        recorder.event("anchor", start=5.0, step=9, rank=1)
        recorder.artifact("summary", "old")
        recorder.artifact("summary", "Linear(4, 2)")
    with RunView(recorder.folder) as view:
        info = view.info()
        points = view.points()
        (epoch,) = view.epochs()
        sync, anchor = view.events()
        config = view.config()
        assert [(p.name, p.value, p.step, p.epoch, p.rank) for p in points] == [
            ("loss", 1.5, 1, 1, 0),
            ("loss", 1.25, 2, 1, 3),
            ("lr", 0.1, 2, 1, 3),
        ]
        assert view.names() == ["loss", "lr"]
        assert view.series("loss") == points[:2]
        assert view.series("loss", since=points[0].id) == points[1:2]
        assert view.points(since=points[0].id, limit=1) == points[1:2]
        assert view.last() == {"loss": points[1], "lr": points[2]}
        assert view.artifacts() == ["summary"]
        assert view.artifact("summary") == "Linear(4, 2)"
    assert (info.run_id, info.name, info.state, info.error) == (recorder.run_id, "digits", "finished", None)
    assert (info.total_epochs, info.total_steps, info.last_epoch, info.last_step) == (2, 20, 1, 2)
    assert info.seeds == {"torch": 7}
    assert info.hardware["cuda"] is None
    assert info.hardware["ram_total_bytes"] > 0
    assert info.versions["sqlite"] == sqlite3.sqlite_version
    assert info.started <= info.heartbeat
    assert info.ended is not None
    assert (epoch.number, epoch.step, epoch.seconds, epoch.metrics["loss"]) == (1, 2, 0.5, 1.375)
    assert math.isnan(epoch.metrics["acc"])
    assert (sync.kind, sync.step, sync.seconds, sync.data["bytes"]) == ("sync", 2, 0.25, 10)
    assert math.isnan(sync.data["spread"])
    assert sync.start < sync.time
    assert (anchor.start, anchor.seconds, anchor.step, anchor.rank) == (5.0, None, 9, 1)
    assert config["optimizer.lr"].value == 0.1
    assert config["optimizer.lr"].origin == "fdl.yml:12"
    assert config["optimizer.betas"].value == [0.9, 0.999]
    assert config["data"].value == str(tmp_path)
    assert config["clip"].value == math.inf
    assert config["none"].value == {}
    ids = [*(p.id for p in points), epoch.id, sync.id, anchor.id]
    assert ids == sorted(set(ids))
    assert max(ids) <= info.last_id


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (math.inf, math.inf),
        (-math.inf, -math.inf),
        (5e-324, 5e-324),
        (1.7976931348623157e308, 1.7976931348623157e308),
        (10**400, math.inf),
        (-(10**400), -math.inf),
        (2**53, 2.0**53),
        (True, 1.0),
        (np.float32(0.1), float(np.float32(0.1))),
        (np.int64(-3), -3.0),
        (np.bool_(False), 0.0),
        (np.array(2.5), 2.5),
        (torch.tensor(0.25), 0.25),
        (Decimal("0.5"), 0.5),
        (Fraction(1, 4), 0.25),
    ],
    ids=repr,
)
def test_every_kind_of_number_is_kept(tmp_path: Path, value: float, stored: float) -> None:
    with Recorder(tmp_path) as recorder:
        recorder.metric("v", value, step=0)
        recorder.metrics(1, {"v": value})
        recorder.epoch(1, {"v": value})
    with RunView(recorder.folder) as view:
        assert [point.value for point in view.series("v")] == [stored, stored]
        assert view.epochs()[0].metrics == {"v": stored}


def test_values_that_are_not_finite_are_kept_and_counted(tmp_path: Path) -> None:
    values = [1.0, math.nan, math.inf, float(np.nan), -math.inf, 2.0]
    with Recorder(tmp_path) as recorder:
        for step, value in enumerate(values):
            recorder.metric("loss", value, step=step)
    with RunView(recorder.folder) as view:
        assert repr([point.value for point in view.series("loss")]) == repr(values)
        assert view.counts("loss") == (6, 2, 2)
        assert view.counts("no such series") == (0, 0, 0)


@pytest.mark.parametrize("value", ["1.5", b"1", None, 1j, [1.0, 2.0], torch.zeros(2), object()], ids=repr)
def test_what_is_no_number_is_refused_by_name(tmp_path: Path, value: float) -> None:
    with Recorder(tmp_path) as recorder:
        with pytest.raises(StoreError, match=r"'val/acc'.*is no number"):
            recorder.metric("val/acc", value, step=1)
        with pytest.raises(StoreError, match=r"'val/acc'.*is no number"):
            recorder.metrics(1, {"loss": 1.0, "val/acc": value})
        with pytest.raises(StoreError, match=r"'val/acc'.*is no number"):
            recorder.epoch(1, {"val/acc": value})
    with RunView(recorder.folder) as view:
        assert view.points() == []
        assert view.epochs() == []


@pytest.mark.parametrize("step", [1.5, "1", None, 2**63, -(2**63) - 1])
def test_a_step_that_is_no_integer_is_refused(tmp_path: Path, step: int) -> None:
    with Recorder(tmp_path) as recorder:
        with pytest.raises(StoreError, match="step"):
            recorder.metric("loss", 1.0, step=step)
        with pytest.raises(StoreError, match="epoch"):
            recorder.metric("loss", 1.0, step=1, epoch=step or 0.5)  # type: ignore[arg-type]
        recorder.metric("loss", 1.0, step=np.int64(3), epoch=np.int32(1), rank=np.int8(1))  # type: ignore[arg-type]
    with RunView(recorder.folder) as view:
        assert [(p.step, p.epoch, p.rank) for p in view.points()] == [(3, 1, 1)]


@pytest.mark.parametrize(
    "name",
    [
        "",
        "a'b\"c",
        "</script>",
        "Ünïcode 训练 🔥",
        "x" * 10_000,
        "two\nlines",
        "nul\0inside",
        "[bold]",
        "%s",
        "back\\slash",
    ],
    ids=lambda name: ascii(name)[:20],
)
def test_any_name_is_kept(tmp_path: Path, name: str) -> None:
    with Recorder(tmp_path, name=name, config={name: name}, origins={name: name}) as recorder:
        recorder.metric(name, 1.0, step=1)
        recorder.epoch(1, {name: 2.0})
        recorder.event(name, text=name)
        recorder.artifact(name, name)
    with RunView(recorder.folder) as view:
        assert view.info().name == name
        assert view.names() == [name]
        assert view.series(name)[0].value == 1.0
        assert view.epochs()[0].metrics == {name: 2.0}
        assert [(event.kind, event.data) for event in view.events(kind=name)] == [(name, {"text": name})]
        assert view.artifact(name) == name
        assert (view.config()[name].value, view.config()[name].origin) == (name, name)


def test_a_lone_surrogate_is_stored_as_its_escape(tmp_path: Path) -> None:
    with Recorder(tmp_path, config={"\ud800": "\udfff"}) as recorder:
        recorder.metric("a\ud800", 1.0, step=1)
        recorder.event("\ud800", x="\ud800")
    with RunView(recorder.folder) as view:
        assert view.names() == ["a\\ud800"]
        assert len(view.series("a\ud800")) == 1
        assert view.config()["\\ud800"].value == "\\udfff"


def test_data_that_json_lacks_is_kept_readable(tmp_path: Path) -> None:
    cycle: list[object] = []
    cycle.append(cycle)
    with Recorder(tmp_path) as recorder:
        recorder.event(
            "x", cycle=cycle, big=10**5000, types={int}, numpy=np.float32(0.5), tensor=torch.tensor(3), k={1: 2}
        )
    with RunView(recorder.folder) as view:
        data = view.events()[0].data
    assert "[...]" in repr(data["cycle"])
    assert int(data["big"], 16) == 10**5000
    assert data["types"] == ["<class 'int'>"]
    assert (data["numpy"], data["tensor"], data["k"]) == (0.5, 3, {"1": 2})


def test_a_reader_sees_the_run_while_it_is_written_and_misses_nothing(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    total = 3000
    producer = threading.Thread(target=lambda: [recorder.metric("loss", i / 7, step=i) for i in range(total)])
    producer.start()
    seen: list[tuple[int, float]] = []
    with RunView(recorder.folder) as view:
        last = 0
        while len(seen) < total:
            assert view.info().state == "running"
            for point in view.points(since=last):
                seen.append((point.step, point.value))
                last = point.id
    producer.join()
    recorder.finish()
    assert seen == [(i, i / 7) for i in range(total)]


def test_after_the_end_no_thread_is_left_and_writes_are_committed_at_once(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    recorder = Recorder(tmp_path)
    recorder.metric("loss", 1.0, step=1)
    recorder.finish("failed", "ValueError: bad")
    assert set(threading.enumerate()) == before
    recorder.finish("finished")
    recorder.flush()
    with RunView(recorder.folder) as view:
        recorder.metrics(1, {"test/acc": 0.5, "test/loss": 2.0})
        recorder.event("evaluation")
        assert [(p.name, p.value) for p in view.points()] == [("loss", 1.0), ("test/acc", 0.5), ("test/loss", 2.0)]
        assert [event.kind for event in view.events()] == ["evaluation"]
        assert (view.info().state, view.info().error) == ("failed", "ValueError: bad")
    assert set(threading.enumerate()) == before


def test_a_finished_run_is_one_file(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder:
        recorder.metric("loss", 1.0, step=1)
    with RunView(recorder.folder) as view:
        assert view.names() == ["loss"]
    assert [file.name for file in recorder.folder.iterdir()] == ["run.db"]


def test_a_run_that_is_being_read_at_its_end_is_whole_without_its_log(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.metric("loss", 1.0, step=1)
    recorder.flush()
    with RunView(recorder.folder) as view:
        assert view.names() == ["loss"]
        recorder.metric("acc", 1.0, step=1)
        recorder.finish()
        assert view.names() == ["loss", "acc"]
        (tmp_path / "copy").mkdir()
        shutil.copy(recorder.path, tmp_path / "copy")
    with RunView(tmp_path / "copy") as view:
        assert view.names() == ["loss", "acc"]


def test_the_program_may_change_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Recorder("runs") as recorder:
        recorder.flush()
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        recorder.metric("loss", 1.0, step=1)
    recorder.metric("late", 1.0, step=1)
    with RunView(recorder.folder) as view:
        assert view.names() == ["loss", "late"]


def test_threads_may_record_while_others_end_the_run(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    began = threading.Barrier(5)

    def record(first: int) -> None:
        for step in range(first, first + 100):
            recorder.metric("loss", 1.0, step=step)
        began.wait()
        for step in range(first + 100, first + 200):
            recorder.metric("loss", 1.0, step=step)

    def end() -> None:
        began.wait()
        recorder.finish()

    threads = [threading.Thread(target=record, args=(first,)) for first in (0, 1000)]
    threads += [threading.Thread(target=end) for _ in range(2)]
    for thread in threads:
        thread.start()
    began.wait()
    for thread in threads:
        thread.join()
    with RunView(recorder.folder) as view:
        assert view.info().state == "finished"
        steps = [point.step for point in view.points()]
    assert len(steps) == len(set(steps)), "nothing twice"
    assert {*range(100), *range(1000, 1100)} <= set(steps), "all from before the end"
    assert set(steps) <= {*range(200), *range(1000, 1200)}


@pytest.mark.parametrize(
    ("error", "state", "text"),
    [
        (ValueError("bad shape"), "failed", "ValueError: bad shape"),
        (KeyboardInterrupt(), "stopped", None),
        (SystemExit(3), "stopped", None),
    ],
)
def test_how_the_block_ends_decides_the_state(
    tmp_path: Path, error: BaseException, state: str, text: str | None
) -> None:
    with pytest.raises(type(error)), Recorder(tmp_path) as recorder:
        raise error
    with RunView(recorder.folder) as view:
        assert (view.info().state, view.info().error) == (state, text)


def test_cut_removes_what_came_after_a_step(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder:
        for step in range(1, 11):
            recorder.metric("loss", float(step), step=step)
            if step % 5 == 0:
                recorder.epoch(step // 5, {"loss": float(step)})
                recorder.event("checkpoint")
        recorder.flush()
        with RunView(recorder.folder) as view:
            last = view.info().last_id
        recorder.cut_after(7)
        with RunView(recorder.folder) as view:
            assert [point.step for point in view.series("loss")] == [1, 2, 3, 4, 5, 6, 7]
            assert [(epoch.number, epoch.metrics) for epoch in view.epochs()] == [(1, {"loss": 5.0})]
            assert [(event.kind, event.step) for event in view.events()] == [("checkpoint", 5), ("cut", 7)]
            assert view.events(since=last)[0].data == {"after_step": 7}
            assert (view.info().last_step, view.info().last_epoch) == (7, 1)
        recorder.metric("loss", 8.5, step=8)
    with RunView(recorder.folder) as view:
        assert view.series("loss")[-1].id > last, "an id is never used twice"


def test_requests_reach_the_training_once_and_are_audited(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    assert recorder.requests() == ()
    request(recorder.folder, "save", origin="page")
    request(recorder.folder, "stop", origin="fdl 'runs' stop")
    found = []
    while len(found) < 2:
        found += eventually(recorder.requests)  # type: ignore[arg-type]
    recorder.flush()
    late = request(recorder.folder, "save", origin="too late")
    recorder.finish("stopped")
    assert [(r.action, r.origin) for r in found] == [("save", "page"), ("stop", "fdl 'runs' stop")]
    with RunView(recorder.folder) as view:
        save, stop, void = view.audit()
    assert save.taken is not None
    assert stop.taken is not None
    assert (void.id, void.taken, void.outcome) == (late, None, "the run ended")
    with pytest.raises(StoreError, match="is stopped: there is nothing to save"):
        request(recorder.folder, "save", origin="page")


def test_resources_are_sampled(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    with RunView(recorder.folder) as view:
        eventually(lambda: len(view.resources()) >= 2)
        first, second, *_ = view.resources()
        assert view.resources(since=first.id)[0] == second
    recorder.finish()
    assert first.sample.rss_bytes > 1_000_000
    assert first.sample.ram_total_bytes > first.sample.ram_used_bytes > 0
    assert second.sample.time > first.sample.time


def test_resuming_goes_on_with_the_run(tmp_path: Path) -> None:
    with Recorder(tmp_path, name="first", config={"lr": 1}) as first:
        first.metric("loss", 1.0, step=1)
    with Recorder(tmp_path, run_id=first.run_id, config={"lr": 2}, resume=True) as second:
        with RunView(second.folder) as view:
            assert (view.info().state, view.info().ended) == ("running", None)
        second.metric("loss", 2.0, step=2)
    with RunView(first.folder) as view:
        assert [(point.name, point.step) for point in view.points()] == [("loss", 1), ("loss", 2)]
        assert view.config()["lr"].value == 2
        assert view.info().name == "first"
        assert [(event.kind, event.data["state"]) for event in view.events()] == [("resumed", "finished")]
        ids = [*(point.id for point in view.points()), *(event.id for event in view.events())]
        assert len(set(ids)) == 3


def test_a_request_to_a_dead_run_does_not_stop_the_resumed_one(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.finish()
    connection = sqlite3.connect(recorder.path)
    with connection:
        connection.execute("INSERT INTO control (time, action, origin) VALUES (1, 'stop', 'old')")
    connection.close()
    with Recorder(tmp_path, run_id=recorder.run_id, resume=True) as resumed:
        request(resumed.folder, "save", origin="new")
        assert [r.origin for r in eventually(resumed.requests)] == ["new"]  # type: ignore[attr-defined]


def test_a_run_id_is_refused_when_it_cannot_be_used(tmp_path: Path) -> None:
    with Recorder(tmp_path, run_id="alpha") as recorder:
        with pytest.raises(StoreError, match="'alpha' exists already"):
            Recorder(tmp_path, run_id="alpha")
        with pytest.raises(StoreError, match=r"'alpha' is still running"):
            Recorder(tmp_path, run_id="alpha", resume=True)
    with pytest.raises(StoreError, match=r"no run 'alpa'.*Did you mean 'alpha'"):
        Recorder(tmp_path, run_id="alpa", resume=True)
    with pytest.raises(StoreError, match="needs the run id"):
        Recorder(tmp_path, resume=True)
    for name in ("", "..", "a/b", "a\0b"):
        with pytest.raises(StoreError, match="cannot name a folder"):
            Recorder(tmp_path, run_id=name)
    with pytest.raises(StoreError):
        Recorder(tmp_path, run_id="x" * 300)
    assert recorder.run_id == "alpha"
    assert [run.folder.name for run in list_runs(tmp_path)] == ["alpha"]


def test_runs_that_start_in_the_same_second_have_different_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suffixes = iter(["aaaa", "aaaa", "bbbb"])
    monkeypatch.setattr("secrets.token_hex", lambda size: next(suffixes))
    monkeypatch.setattr("time.gmtime", lambda: time.struct_time((2026, 12, 1, 0, 23, 39, 1, 335, 0)))
    with Recorder(tmp_path) as first, Recorder(tmp_path) as second:
        assert first.run_id == "20261201-002339-aaaa"
        assert second.run_id == "20261201-002339-bbbb"


def test_a_cut_at_a_mark_also_drops_later_rows_of_the_same_step(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder:
        recorder.metric("loss", 1.0, step=5)
        recorder.metric("test_loss", 2.0, step=5)
        mark = recorder.flush()
        assert mark is not None
        recorder.metric("test_loss", 3.0, step=5)
        recorder.epoch(0, {"loss": 1.0}, step=5)
        recorder.event("evaluation", step=5)
        recorder.cut_after(5, mark)
        with RunView(recorder.folder) as view:
            assert [(p.name, p.value) for p in view.points()] == [("loss", 1.0), ("test_loss", 2.0)]
            assert view.epochs() == []
            (cut,) = view.events()
            assert (cut.kind, cut.data) == ("cut", {"after_step": 5, "after_id": mark})
