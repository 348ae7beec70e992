"""What the server says of runs equals what was recorded."""

from __future__ import annotations

import math
from pathlib import Path
from urllib.parse import quote

import pytest

from flodl.monitor import Recorder

NASTY = [
    "</script><script>alert(1)</script>",
    'a "quoted"\nname',
    "emoji 🎉",
    "x" * 10_000,
    "dotted.name",
    "",
    "\u2028",
]


def test_a_folder_without_runs(browser, runs: Path) -> None:
    assert browser("/api/runs").json == {"runs": []}


def test_a_run_in_the_list(browser, runs: Path) -> None:
    with Recorder(runs, run_id="a run", name="first", total_epochs=2, total_steps=20) as recorder:
        for number, loss in enumerate((0.5, 0.25)):
            recorder.metric("loss", loss, step=number)
            recorder.epoch(number, {"loss": loss, "bad": math.nan}, seconds=1.0)
    with pytest.raises(ValueError), Recorder(runs, run_id="b"):
        raise ValueError("it broke")
    first, second = browser("/api/runs").json["runs"]
    assert (first["id"], first["name"], first["state"], first["problem"]) == ("a run", "first", "finished", None)
    assert (first["epoch"], first["total_epochs"], first["step"], first["total_steps"]) == (1, 2, 1, 20)
    assert first["last"] == {"loss": 0.25, "bad": "nan"}
    assert first["best"] == {"loss": {"min": 0.25, "max": 0.5}, "bad": {"min": None, "max": None}}
    assert 0 <= first["seconds"] < 60
    assert (second["state"], second["error"]) == ("failed", "ValueError: it broke")


def test_a_run_without_epochs_shows_its_newest_values(browser, runs: Path) -> None:
    with Recorder(runs, run_id="a") as recorder:
        for step in range(3):
            recorder.metric("loss", step, step=step)
    assert browser("/api/runs").json["runs"][0]["last"] == {"loss": 2.0}


def test_everything_of_a_run(browser, runs: Path) -> None:
    config, origins = {"lr": 0.1, "deep": {"inf": math.inf, "names": NASTY}}, {"lr": "fdl.yml:3"}
    with Recorder(runs, run_id="r", config=config, origins=origins, seeds={"data": 7}) as recorder:
        for name in NASTY:
            recorder.metrics(0, {name: 1.0}, rank=1)
            recorder.metrics(1, {name: math.nan})
            recorder.metrics(2, {name: -math.inf})
        recorder.artifact("model.txt", "Linear(<4>, 2)")
        recorder.event("warning", text=NASTY[0], value=math.nan)
    found = browser("/api/runs/r").json
    assert found["info"]["run_id"] == "r"
    assert found["info"]["seeds"] == {"data": 7}
    assert found["info"]["state"] == "finished"
    settings = {row["path"]: (row["value"], row["origin"]) for row in found["config"]}
    assert settings == {
        "lr": (0.1, "fdl.yml:3"),
        "deep.inf": ({"$float": "inf"}, None),
        "deep.names": (NASTY, None),
    }
    assert [(s["name"], s["count"], s["nan"], s["inf"], s["ranks"]) for s in found["series"]] == [
        (name, 3, 1, 1, [0, 1]) for name in NASTY
    ]
    assert found["artifacts"] == ["model.txt"]
    text = browser("/api/runs/r/artifact?name=model.txt")
    assert (text.body, text.headers["content-type"]) == (b"Linear(<4>, 2)", "text/plain; charset=utf-8")
    (event,) = browser("/api/runs/r/events").json["events"]
    assert (event["kind"], event["data"]) == ("warning", {"text": NASTY[0], "value": {"$float": "nan"}})


def test_series_are_told_apart_by_rank_and_gaps_are_marked(browser, runs: Path) -> None:
    with Recorder(runs, run_id="r") as recorder:
        for step, value in enumerate([1.0, math.nan, 2.0, math.inf, -math.inf, 3.5]):
            recorder.metric("loss", value, step=step)
            recorder.metric("loss", -value, step=step, rank=3)
        recorder.metric("other", 7, step=0)
    ids = {s["name"]: s["id"] for s in browser("/api/runs/r").json["series"]}
    found = browser(f"/api/runs/r/series?s={ids['other']}&s={ids['loss']}").json["series"]
    assert [(s["id"], s["rank"], s["total"], s["not_finite"]) for s in found] == [
        (ids["other"], 0, 1, 0),
        (ids["loss"], 0, 6, 3),
        (ids["loss"], 3, 6, 3),
    ]
    assert found[1]["x"] == [0, 1, 2, 3, 5]
    assert found[1]["y"] == [1.0, None, 2.0, None, 3.5]
    assert found[1]["gaps"] == [[1, "nan"], [3, "inf"], [4, "-inf"]]
    assert found[2]["gaps"] == [[1, "nan"], [3, "-inf"], [4, "inf"]]
    (only,) = browser(f"/api/runs/r/series?s={ids['loss']}&rank=3&x=time").json["series"]
    assert only["rank"] == 3
    assert only["x"] == sorted(only["x"])
    assert only["x"][0] > 1e9


def test_zooming_in_shows_single_points_and_one_on_either_side(browser, runs: Path) -> None:
    with Recorder(runs, run_id="r") as recorder:
        for step in range(10_000):
            recorder.metric("loss", 1000.0 if step == 4321 else step % 7, step=step)
    (whole,) = browser("/api/runs/r/series?s=1&width=100").json["series"]
    assert 100 < len(whole["x"]) <= 204
    assert (whole["x"][0], whole["x"][-1], whole["total"]) == (0, 9999, 10_000)
    assert 1000.0 in whole["y"]
    (part,) = browser("/api/runs/r/series?s=1&width=100&from=4300&to=4310").json["series"]
    assert part["x"] == list(range(4299, 4312))
    assert part["y"] == [step % 7 for step in part["x"]]


def test_what_is_recorded_later_and_what_is_cut(browser, runs: Path) -> None:
    with Recorder(runs, run_id="r") as recorder:
        recorder.metric("loss", 1, step=1)
        recorder.flush()
        first = browser("/api/runs/r/series?s=1").json
        assert first["series"][0]["x"] == [1]
        recorder.metric("loss", 2, step=2)
        recorder.metric("loss", 2.5, step=2, rank=1)
        recorder.flush()
        second = browser("/api/runs/r/series?s=1").json
        assert [s["x"] for s in second["series"]] == [[1, 2], [2]]
        assert second["last_id"] > first["last_id"]
        recorder.cut_after(1)
        recorder.metric("loss", 3, step=2)
        recorder.flush()
        (last,) = browser("/api/runs/r/series?s=1").json["series"]
        assert (last["x"], last["y"]) == ([1, 2], [1.0, 3.0])


def test_a_thousand_series_in_one_pass(browser, runs: Path) -> None:
    with Recorder(runs, run_id="r") as recorder:
        for step in range(20):
            for rank in (0, 2):
                recorder.metrics(step, {f"m{i}": i + step + rank / 10 for i in range(150)}, rank=rank)
    query = "&".join(f"s={i + 1}" for i in range(150))
    found = browser(f"/api/runs/r/series?{query}").json["series"]
    assert [(s["id"], s["rank"]) for s in found] == [(i + 1, rank) for i in range(150) for rank in (0, 2)]
    for s in found:
        assert s["y"] == [s["id"] - 1 + step + s["rank"] / 10 for step in range(20)]


def test_epochs_and_events_since(browser, runs: Path) -> None:
    with Recorder(runs, run_id="r") as recorder:
        for number in range(5):
            recorder.epoch(number, {"loss": number}, seconds=0.5, step=number)
            recorder.event("checkpoint" if number % 2 else "steps", step=number, file=f"{number}.pt")
    epochs = browser("/api/runs/r/epochs").json["epochs"]
    assert [(e["number"], e["metrics"]) for e in epochs] == [(n, {"loss": float(n)}) for n in range(5)]
    assert browser(f"/api/runs/r/epochs?since={epochs[2]['id']}").json["epochs"] == epochs[3:]
    events = browser("/api/runs/r/events").json
    assert ([e["step"] for e in events["events"]], events["more"]) == ([0, 1, 2, 3, 4], False)
    assert [e["step"] for e in browser("/api/runs/r/events?kind=checkpoint").json["events"]] == [1, 3]
    assert [e["step"] for e in browser("/api/runs/r/events?without=steps").json["events"]] == [1, 3]
    first = browser("/api/runs/r/events?limit=2").json
    assert ([e["step"] for e in first["events"]], first["more"]) == ([0, 1], True)
    assert [e["step"] for e in browser("/api/runs/r/events?limit=2&tail=1").json["events"]] == [3, 4]


def test_the_timeline_from_the_whole_run_to_single_steps(browser, runs: Path) -> None:
    start = 1_000_000.0
    with Recorder(runs, run_id="r") as recorder:
        for block in range(10):
            recorder.event(
                "steps",
                start=start + block * 0.1,
                seconds=0.1,
                step=block * 100 + 99,
                first=block * 100,
                data_us=[250] * 100,
                compute_us=[750] * 100,
            )
        recorder.event("checkpoint", start=start + 0.5, seconds=0.05, step=500)
        recorder.event("sync", start=start + 0.2, seconds=0.01, step=200, rank=1)
        recorder.event("anchor", start=start + 0.3, anchor=4)
        recorder.event("steps", start=start, seconds=0.1, rank=1, what="of somebody else")
    whole = browser("/api/runs/r/timeline?width=5").json
    assert (whole["from"], whole["to"]) == (pytest.approx(start), pytest.approx(start + 1))
    ranks = {row["rank"]: {lane["lane"]: lane["spans"] for lane in row["lanes"]} for row in whole["ranks"]}
    assert set(ranks[0]) == {"data", "compute", "checkpoint"}
    assert set(ranks[1]) == {"sync", "steps"}
    assert len(ranks[0]["compute"]) <= 6
    assert sum(span[3] for span in ranks[0]["compute"]) == 1000
    assert sum(span[4] for span in ranks[0]["compute"]) == pytest.approx(0.75)
    assert sum(span[4] for span in ranks[0]["data"]) == pytest.approx(0.25)
    assert [(m["kind"], m["data"]) for m in whole["marks"]] == [("anchor", {"anchor": 4})]
    part = browser(f"/api/runs/r/timeline?width=1000&from={start + 0.25}&to={start + 0.26}").json
    lanes = {lane["lane"]: lane["spans"] for lane in part["ranks"][0]["lanes"]}
    step = next(span for span in lanes["compute"] if span[2] == 255)
    assert step == [pytest.approx(start + 0.25525), pytest.approx(0.00075), 255, 1, pytest.approx(0.00075)]


def test_resources(browser, runs: Path) -> None:
    with Recorder(runs, run_id="r") as recorder:
        recorder.flush()
    found = browser("/api/runs/r/resources").json
    assert len(found["time"]) == len(found["rss_bytes"]) >= 1
    assert found["rss_bytes"][0] > 1_000_000
    assert found["gpus"] == [] or len(found["gpus"][0]["vram_used_bytes"]) == len(found["time"])


def test_runs_with_strange_names(browser, runs: Path) -> None:
    names = [name[:80] for name in NASTY if name and "/" not in name] + ["50%", "a?b#c", "a\n"]
    for name in [*names, "...", ".hidden"]:
        with Recorder(runs, run_id=name) as recorder:
            recorder.metric("loss", 1, step=1)
    assert [row["id"] for row in browser("/api/runs").json["runs"]] == sorted(names)
    for name in names:
        assert browser(f"/api/runs/{quote(name, safe='')}").json["info"]["run_id"] == name
    for name in ("...", ".hidden"):
        assert browser(f"/api/runs/{name}").status == 404


WRONG = [
    ("/api/runs/none", 404),
    ("/api/runs/r/artifact?name=none", 404),
    ("/api/nothing", 404),
    ("/api/runs/r/series?s=x", 400),
    ("/api/runs/r/series?s=1&x=epoch", 400),
    ("/api/runs/r/series?s=1&width=0", 400),
    ("/api/runs/r/series?s=1&width=99999999", 400),
    ("/api/runs/r/series?s=1&from=nan", 400),
    ("/api/runs/r/series?s=1&from=2&to=1", 400),
    ("/api/runs/r/series?" + "s=1&" * 201, 400),
    ("/api/runs/r/events?since=-5", 400),
    ("/api/stream?run=none:0", 404),
    ("/api/stream?run=r:x", 400),
    ("/api/stream?run=r", 400),
]


def test_wrong_questions(browser, runs: Path) -> None:
    Recorder(runs, run_id="r").finish()
    for path, status in WRONG:
        found = browser(path)
        assert (found.status, list(found.json)) == (status, ["error"]), path


def test_a_series_that_does_not_exist_is_left_out(browser, runs: Path) -> None:
    Recorder(runs, run_id="r").finish()
    assert browser("/api/runs/r/series?s=99").json["series"] == []
