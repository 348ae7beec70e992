"""Streams: everything once, in order, whatever happens to the connection."""

from __future__ import annotations

import json
import math
import random
import shutil
import threading
import time
from pathlib import Path

import psutil
import pytest

from flodl.monitor import Recorder, RunView


def by_rows(stream, *, until: int) -> list[dict]:
    """The data of `rows` messages until one says that everything up to id `until` was sent."""
    found = []
    for message in stream:
        if message.event == "rows":
            found.append(message.data)
            if message.data["last_id"] >= until:
                break
    return found


def test_a_stream_begins_with_everything_and_goes_on(browser, runs: Path) -> None:
    with Recorder(runs, run_id="r", total_epochs=3) as recorder:
        recorder.metric("loss", 0.5, step=1, epoch=0)
        recorder.metric("bad", -math.inf, step=1)
        recorder.event("warning", text="</script>")
        recorder.artifact("model.txt", "m")
        recorder.flush()
        with browser.stream("run=r:0") as stream:
            rows = stream.until("rows").data
            assert rows["names"] == {"1": "loss", "2": "bad"}
            assert [p[1:5] + p[6:] for p in rows["points"]] == [[1, 0, 1, 0, 0.5, 0], [2, 0, 1, None, None, 3]]
            assert rows["events"][0]["data"] == {"text": "</script>"}
            assert rows["artifacts"] == ["model.txt"]
            assert not rows["more"]
            info = stream.until("info").data
            assert (info["run"], info["info"]["state"], info["info"]["total_epochs"]) == ("r", "running", 3)
            recorder.metric("loss", 0.25, step=2)
            recorder.metric("new", 1, step=2)
            recorder.epoch(0, {"loss": math.nan}, step=2)
            later = next(m.data for m in stream if m.event == "rows" and m.data["points"])
            assert later["names"] == {"3": "new"}
            assert [p[3] for p in later["points"]] == [2, 2]
            assert later["epochs"][0]["metrics"] == {"loss": "nan"}
            recorder.finish()
            assert next(m for m in stream if m.event == "info" and m.data["info"]["state"] == "finished")


def test_cut_connections_lose_nothing_and_repeat_nothing(browser, runs: Path) -> None:
    """10,000 events and points pass while the connection breaks at random points; the reader's data equals the store."""
    chance = random.Random(7)
    recorder = Recorder(runs, run_id="r")
    total = 5_000

    def train() -> None:
        for step in range(total):
            recorder.metric("loss", step / 3, step=step)
            recorder.event("sync", step=step, seconds=0.0)
            if step % 50 == 0:
                time.sleep(0.02)
        recorder.finish()

    training = threading.Thread(target=train)
    training.start()
    points, events, resources, token, cuts = [], [], [], None, 0
    reached, end = 0, None
    while reached != end:
        headers = {} if token is None else {"Last_Event_ID": token}
        with browser.stream("run=r:0", cut_after=chance.randrange(300_000), **headers) as stream:
            for message in stream:
                if message.event == "rows":
                    points += message.data["points"]
                    events += message.data["events"]
                    resources += message.data["resources"]
                    reached = message.data["last_id"]
                elif message.event == "info" and message.data["info"]["state"] == "finished":
                    end = message.data["info"]["last_id"]
                token = message.id
                if reached == end:
                    break
        cuts += 1
    training.join()
    assert cuts > 5
    with RunView(runs / "r") as view:
        assert [(p[0], p[3], p[6]) for p in points] == [(p.id, p.step, p.value) for p in view.points()]
        assert [(e["id"], e["step"]) for e in events] == [(e.id, e.step) for e in view.events()]
        assert [r[0] for r in resources] == [r.id for r in view.resources()]


def test_a_break_in_the_middle_of_a_message(browser, runs: Path) -> None:
    """The reader takes only whole messages; the unfinished one comes again."""
    with Recorder(runs, run_id="r") as recorder:
        for step in range(3_000):
            recorder.metric("loss", step, step=step)
    with browser.stream("run=r:0") as stream:
        first = stream.until("rows")
        stream.file.read(1000)
    with browser.stream("run=r:0", Last_Event_ID=first.id) as stream:
        rest = by_rows(stream, until=3_000)
    steps = [p[3] for data in [first.data, *rest] for p in data["points"]]
    assert steps == list(range(3_000))


def test_several_runs_in_one_stream(browser, runs: Path) -> None:
    for name in ("a:b", "c,d %"):
        with Recorder(runs, run_id=name) as recorder:
            recorder.metrics(0, {"loss": 1.0})
    query = "run=a%3Ab:0&run=c%2Cd%20%25:0"
    with browser.stream(query) as stream:
        found = [stream.until("rows"), stream.until("rows")]
    assert {m.data["run"] for m in found} == {"a:b", "c,d %"}
    with browser.stream(query, Last_Event_ID=found[1].id) as stream:
        assert stream.until("info").data["run"] == "a:b"
        with Recorder(runs, run_id="a:b", resume=True) as recorder:
            recorder.metric("loss", 2.0, step=1)
        rows = stream.until("rows").data
        assert [e["kind"] for e in rows["events"]] == ["resumed"]


def test_a_reader_hears_of_a_cut(browser, runs: Path) -> None:
    with Recorder(runs, run_id="r") as recorder:
        for step in range(5):
            recorder.metric("loss", step, step=step)
        recorder.flush()
        with browser.stream("run=r:0") as stream:
            stream.until("rows")
            recorder.cut_after(2)
            event = next(e for m in stream if m.event == "rows" for e in m.data["events"])
            assert (event["kind"], event["step"]) == ("cut", 2)


def test_a_run_that_was_replaced_by_another(browser, runs: Path) -> None:
    for value in (1.0, 2.0):
        if value == 2.0:
            shutil.rmtree(runs / "r")
        with Recorder(runs, run_id="r") as recorder:
            recorder.metrics(0, {"loss": value, "other": value})
        if value == 1.0:
            with browser.stream("run=r:0") as stream:
                token = stream.until("rows").id
        time.sleep(0.01)
    with browser.stream("run=r:0", Last_Event_ID=token) as stream:
        assert stream.until("reset").data == {"run": "r"}
        assert [p[6] for p in stream.until("rows").data["points"]] == [2.0, 2.0]


def test_the_list_of_runs_changes(browser, runs: Path) -> None:
    Recorder(runs, run_id="a").finish()
    with browser.stream("run=a:0") as stream:
        stream.until("info")
        time.sleep(0.5)  # the list was looked at once
        Recorder(runs, run_id="b").finish()
        stream.until("runs")


def test_a_store_that_breaks_and_recovers(browser, runs: Path) -> None:
    Recorder(runs, run_id="r").finish()
    store = runs / "r" / "run.db"
    good, bad = runs / "good", runs / "bad"
    shutil.copy(store, good)
    bad.write_bytes(b"x" * 100)
    with browser.stream("run=r:0") as stream:
        stream.until("info")
        bad.replace(store)
        assert "damaged" in stream.until("problem").data["problem"]
        good.replace(store)
        assert stream.until("problem").data["problem"] is None


def test_big_rows_come_in_pieces(browser, runs: Path) -> None:
    with Recorder(runs, run_id="r") as recorder:
        for number in range(20):
            recorder.event("big", text="y" * 50_000, step=number)
            recorder.epoch(number, {f"m{i}": i for i in range(600)}, step=number)
        recorder.flush()
        with RunView(recorder.folder) as view:
            last_id = view.info().last_id
    with browser.stream("run=r:0") as stream:
        found = by_rows(stream, until=last_id)
    assert max(len(json.dumps(data)) for data in found) < 200_000
    assert [e["step"] for data in found for e in data["events"]] == list(range(20))
    assert [e["number"] for data in found for e in data["epochs"]] == list(range(20))
    assert [data["more"] for data in found] == [True] * (len(found) - 1) + [False]


def test_a_quiet_stream_has_a_heartbeat(browser, runs: Path) -> None:
    Recorder(runs, run_id="r").finish()
    with browser.stream("run=r:0") as stream:
        stream.until("info")
        stream.socket.settimeout(8)
        threading.Timer(6, lambda: Recorder(runs, run_id="other").finish()).start()
        stream.until("runs")
        assert stream.comments >= 1


def test_the_end_of_the_server_is_told(browser, runs: Path) -> None:
    Recorder(runs, run_id="r").finish()
    with browser.stream("run=r:0") as stream:
        stream.until("info")
        browser.dashboard.process.terminate()
        stream.until("bye")
        browser.dashboard.process.wait(5)


@pytest.mark.slow
def test_many_slow_readers_cost_bounded_memory(browser, runs: Path) -> None:
    """200 readers that ask for a million points and never read them."""
    with Recorder(runs, run_id="r") as recorder:
        for step in range(50_000):
            recorder.metrics(step, {f"m{i}": step * i for i in range(4)})
            if step % 5_000 == 0:
                recorder.flush()
    with browser.stream("run=r:0") as stream:
        stream.until("rows")
    server = psutil.Process(browser.dashboard.process.pid)
    before = server.memory_info().rss
    streams = [browser.stream("run=r:0") for _ in range(200)]
    try:
        time.sleep(3)
        grown = server.memory_info().rss - before
        assert browser("/api/runs").status == 200
    finally:
        for stream in streams:
            stream.close()
    assert grown < 80_000_000
    deadline = time.monotonic() + 10
    while len(server.net_connections("tcp4")) > 5 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert len(server.net_connections("tcp4")) <= 5


def test_too_many_streams_are_refused(browser, runs: Path) -> None:
    Recorder(runs, run_id="r").finish()
    streams = [browser.stream("run=r:0") for _ in range(256)]
    try:
        for stream in streams:
            stream.until("info")
        with browser.stream("run=r:0") as one_more:
            assert one_more.status == 503
    finally:
        for stream in streams:
            stream.close()
