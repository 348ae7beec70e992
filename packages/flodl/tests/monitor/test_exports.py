"""Runs in other formats equal what was recorded."""

from __future__ import annotations

import csv
import json
import math
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from flodl.errors import StoreError
from flodl.monitor import HtmlReport, Recorder, RunView, export_csv, export_tensorboard, save_html, write_log
from flodl.monitor.server import static

NASTY = ["</script><script>alert(1)</script>", 'a "quoted",\nname', "emoji 🎉", "\u2028", "=1+1"]
VALUES = [0.1, math.nan, math.inf, -math.inf, 1e-300, 123456789.123456789]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    config = {"lr": 0.1, "text": NASTY[0]}
    with Recorder(
        tmp_path / "runs", run_id="r", name="a <run>", config=config, origins={"lr": "fdl.yml:3"}
    ) as recorder:
        for step, value in enumerate(VALUES):
            for name in NASTY:
                recorder.metric(name, value, step=step, epoch=0, rank=step % 2)
        recorder.event("warning", text="line one\nline two")
        recorder.event("steps", start=time.time(), seconds=0.1, first=0, data_us=[1], compute_us=[2])
        recorder.epoch(0, {"loss": 0.25, "bad": math.nan}, seconds=1.5, step=5)
        recorder.artifact("model.txt", "Linear(<4>)")
    return tmp_path / "runs" / "r"


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A page in one file where the built one would be: only its place for the data matters here."""
    folder = tmp_path / "static"
    folder.mkdir()
    (folder / "report.html").write_text("<!doctype html><body><!--flodl-data--><script>show()</script></body>")
    monkeypatch.setattr(static, "STATIC", folder)
    return folder / "report.html"


def test_csv_has_every_point(run: Path, tmp_path: Path) -> None:
    export_csv(run, tmp_path / "points.csv")
    with open(tmp_path / "points.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    with RunView(run) as view:
        points = view.points()
    assert len(rows) == len(points) == len(VALUES) * len(NASTY)
    for row, point in zip(rows, points, strict=True):
        assert (row["series"], int(row["rank"]), int(row["step"]), int(row["epoch"])) == (
            point.name,
            point.rank,
            point.step,
            point.epoch,
        )
        assert float(row["time"]) == point.time
        assert float(row["value"]) == point.value or math.isnan(point.value)


def test_the_log_has_a_line_for_everything(run: Path, tmp_path: Path) -> None:
    write_log(run, tmp_path / "run.log")
    lines = (tmp_path / "run.log").read_text().splitlines()
    assert lines[0] == "run r: a <run>"
    assert "  lr = 0.1  (fdl.yml:3)" in lines
    stamp = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ  "
    for wanted in (
        r'warning, step 5  text="line one\\nline two"',
        r"epoch 1, step 5  loss=0.25  bad=nan  \[1.5s\]",
        r"finished after \S+",
    ):
        assert [line for line in lines if re.fullmatch(stamp + wanted, line)], wanted
    assert not [line for line in lines if "steps" in line]


def test_tensorboard_reads_what_was_recorded(run: Path, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    export_tensorboard(run, tmp_path / "tb")
    with RunView(run) as view:
        points = view.points()
    for rank, folder in ((0, tmp_path / "tb"), (1, tmp_path / "tb" / "rank1")):
        found = EventAccumulator(str(folder), size_guidance={"scalars": 0})
        found.Reload()
        assert set(found.Tags()["scalars"]) == set(NASTY)
        for name in NASTY:
            wanted = [(p.step, p.value) for p in points if p.name == name and p.rank == rank]
            for event, (step, value) in zip(found.Scalars(name), wanted, strict=True):
                assert event.step == step
                assert event.value == pytest.approx(value, rel=1e-6, nan_ok=True)
    with pytest.raises(StoreError, match="not empty"):
        export_tensorboard(run, tmp_path / "tb")


def test_without_tensorboard_its_files_cannot_be_written(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.record_writer", None)
    with pytest.raises(StoreError, match="pip install tensorboard"):
        export_tensorboard(run, "tb")
    assert not Path("tb").exists()


def test_the_page_holds_the_data_and_no_markup_of_it(run: Path, page: Path, tmp_path: Path) -> None:
    save_html(run, tmp_path / "report.html")
    html = (tmp_path / "report.html").read_text(encoding="utf-8")
    before, data, after = re.fullmatch(
        r'(.*)<script type="application/json" id="flodl-data">(.*)</script>(<script>show.*)', html, re.DOTALL
    ).groups()  # type: ignore[union-attr]
    assert before + "<!--flodl-data-->" + after == page.read_text()
    assert not re.search("[<>&\u2028\u2029]", data)
    document = json.loads(data, parse_constant=pytest.fail)
    assert document["runs"][0]["name"] == "a <run>"
    of_run = document["data"]["r"]
    assert [series["name"] for series in of_run["run"]["series"]] == NASTY
    assert len(of_run["series"]["series"]) == 2 * len(NASTY)
    assert of_run["artifacts"] == {"model.txt": "Linear(<4>)"}
    assert [event["kind"] for event in of_run["events"]["events"]] == ["warning"]
    assert of_run["timeline"]["ranks"][0]["lanes"]
    assert of_run["epochs"]["epochs"][0]["metrics"]["bad"] == "nan"


def test_a_report_without_a_built_page(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(static, "STATIC", tmp_path)
    for attempt in (lambda: save_html(run, "report.html"), lambda: HtmlReport(run, "report.html")):
        with pytest.raises(StoreError, match=r"\./fdl web"):
            attempt()
    assert not Path("report.html").exists()


def test_a_report_of_a_live_run_is_refreshed_and_completed(
    page: Path, tmp_path: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    """Refreshing returns at once; the file appears, and at the end holds the end."""
    file = Path(static.__file__).parents[1] / "static" / "report.html"
    if not file.is_file():
        pytest.skip("the page is not built here: a process of its own would not find it")
    with Recorder(tmp_path / "runs", run_id="live") as recorder:
        recorder.metric("loss", 1.0, step=0)
        recorder.flush()
        report = HtmlReport(recorder.folder, tmp_path / "live.html")
        began = time.monotonic()
        report.refresh()
        report.refresh()
        assert time.monotonic() - began < 1
        deadline = time.monotonic() + 30
        while not (tmp_path / "live.html").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert '"state":"running"' in (tmp_path / "live.html").read_text()
    report.close()
    assert '"state":"finished"' in (tmp_path / "live.html").read_text()


def test_a_failed_export_leaves_the_old_file(run: Path, tmp_path: Path) -> None:
    target = tmp_path / "points.csv"
    target.write_text("before")
    with pytest.raises(StoreError, match="cannot write"):
        write_log(run, tmp_path / "missing" / "run.log")
    (run / "run.db").write_bytes((run / "run.db").read_bytes()[:5000])
    with pytest.raises(StoreError):
        export_csv(run, target)
    assert target.read_text() == "before"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["points.csv", "runs"]
