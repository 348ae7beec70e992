"""What watching a training costs, how fast the dashboard's server answers, and what a killed training loses.

Overhead is measured in pairs of short trainings that take turns: with recorder, server and an open stream, and without.
Both wall time and processor time of the training's thread are told; other work on the machine disturbs the first.
Results go to `results/monitor.json` and `results/monitor.md`.
"""

from __future__ import annotations

import argparse
import json
import math
import mmap
import os
import platform
import random
import signal
import sqlite3
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import nn

from flodl.monitor import Dashboard, Recorder, RunView, serve

RESULTS = Path(__file__).parent / "results"
Row = dict[str, Any]

READER = """
import sys, urllib.request
with urllib.request.urlopen(sys.argv[1]) as stream:
    while stream.read1(65536):
        pass
"""

KILLED = """
import mmap, struct, sys, time
from flodl.monitor import Recorder
recorder = Recorder(sys.argv[1], run_id=sys.argv[2])
with open(sys.argv[3], "r+b") as file:
    seen = mmap.mmap(file.fileno(), 16)
step = 0
while True:
    recorder.metric("loss", step / 3, step=step)
    struct.pack_into("qd", seen, 0, step, time.time())
    step += 1
    time.sleep(0.0005)
"""


def small_training() -> Callable[[int, Callable[[int, float], None]], tuple[float, float]]:
    """Trains so many steps of about 1 ms and returns (wall seconds, processor seconds of this thread)."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    batch = 16

    def train(steps: int, record: Callable[[int, float], None]) -> tuple[float, float]:
        x, y = torch.randn(batch, 64), torch.randint(10, (batch,))
        wall, cpu = time.perf_counter(), time.thread_time()
        for step in range(steps):
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            record(step, float(loss.detach()))
        return time.perf_counter() - wall, time.thread_time() - cpu

    train(300, _unwatched)
    while train(200, _unwatched)[1] < 200 * 1e-3:
        batch += 16
    return train


def _unwatched(_step: int, _loss: float) -> None:
    pass


@contextmanager
def watched(folder: Path, run: str) -> Iterator[Recorder]:
    """A recorded run whose stream a reader in another process has open."""
    with serve(0, folder=folder, quiet=True) as dashboard, Recorder(folder, run_id=run) as recorder:
        recorder.flush()
        ask(dashboard, "/api/runs")
        reader = subprocess.Popen([sys.executable, "-c", READER, f"{dashboard.url}api/stream?run={run}:0"])
        try:
            time.sleep(1.0)
            yield recorder
        finally:
            reader.terminate()
            reader.wait()


def overhead(rounds: int) -> Row:
    """Pairs of `with` and `without`, and of `without` and `without`, which is what chance does here."""
    train = small_training()
    steps = max(200, int(200 / train(200, _unwatched)[0]))  # about a second
    pairs: dict[str, list[tuple[tuple[float, float], tuple[float, float]]]] = {"watched": [], "noise": []}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            order = number % 2
            measured: dict[str, tuple[float, float]] = {}
            for kind in ("with", "without", "again") if order else ("again", "without", "with"):
                if kind == "with":
                    with watched(Path(folder), f"r{number}") as recorder:
                        measured[kind] = train(
                            steps, lambda step, loss, r=recorder: r.metrics(step, {"loss": loss, "lr": 1e-3}, epoch=0)
                        )
                else:
                    measured[kind] = train(steps, _unwatched)
            pairs["watched"].append((measured["with"], measured["without"]))
            pairs["noise"].append((measured["again"], measured["without"]))
    found: Row = {"steps": steps, "rounds": rounds}
    for name, rows in pairs.items():
        for clock, which in (("wall", 0), ("processor", 1)):
            ratios = sorted(a[which] / b[which] - 1 for a, b in rows)
            quarter = len(ratios) // 4
            found[f"{name}_{clock}"] = [statistics.median(ratios), ratios[quarter], ratios[-1 - quarter]]
    found["step_ms"] = 1e3 * statistics.median(b[0] for _, b in pairs["watched"]) / steps
    return found


def ask(dashboard: Dashboard, path: str) -> bytes:
    with urllib.request.urlopen(dashboard.url.rstrip("/") + path, timeout=120) as answer:
        return bytes(answer.read())


def timed(dashboard: Dashboard, path: str) -> tuple[float, bytes]:
    """Milliseconds and the answer."""
    start = time.perf_counter()
    body = ask(dashboard, path)
    return 1e3 * (time.perf_counter() - start), body


def fill(folder: Path, run: str, steps: int, series: int) -> Recorder:
    """A live run with `steps` points in each of `series` series."""
    recorder = Recorder(folder, run_id=run)
    for step in range(steps):
        recorder.metrics(step, {f"m{i}": math.sin(step / 5000 + i) + random.random() / 10 for i in range(series)})
        if step % 2000 == 0:
            recorder.flush()
    recorder.flush()
    return recorder


def answers(folder: Path, run: str, steps: int, series: int, shown: int) -> Row:
    """A fresh server on a big run: what the page asks first, what it asks when it zooms, what an update costs."""
    recorder = fill(folder, run, steps, series)
    try:
        with serve(0, folder=folder, quiet=True) as dashboard:
            ask(dashboard, "/api/session")  # the server has started
            process = psutil.Process(dashboard.process.pid)
            started = process.memory_info().rss
            listed_ms, _ = timed(dashboard, "/api/runs")
            detail_ms, detail = timed(dashboard, f"/api/runs/{run}")
            query = "&".join(f"s={s['id']}" for s in json.loads(detail)["series"][:shown])
            path = f"/api/runs/{run}/series?{query}&width=800"
            with waiting(dashboard) as waits:
                first_ms, body = timed(dashboard, path)
                updates = []
                for i in range(20):
                    recorder.metrics(steps + i, {f"m{j}": 1.0 for j in range(shown)})
                    recorder.flush()
                    updates.append(timed(dashboard, path)[0])
                zoom_ms, _ = timed(dashboard, f"{path}&from={steps // 2}&to={steps // 2 + 100}")
            streamed = stream_updates(dashboard, recorder, run, steps, shown)
            return {
                "points": steps * series,
                "series": series,
                "shown": shown,
                "list_ms": listed_ms,
                "detail_ms": detail_ms,
                "detail_bytes": len(detail),
                "first_ms": first_ms,
                "first_bytes": len(body),
                "update_ms": statistics.median(updates),
                "zoom_ms": zoom_ms,
                "stream_ms": streamed,
                "longest_wait_ms": max(waits),
                "started_mb": started / 1e6,
                "memory_mb": process.memory_info().rss / 1e6,
            }
    finally:
        recorder.finish()


@contextmanager
def waiting(dashboard: Dashboard) -> Iterator[list[float]]:
    """Asks for something small all the time: milliseconds that each answer took while others were worked on."""
    waits: list[float] = [0.0]
    done = threading.Event()

    def work() -> None:
        while not done.wait(0.02):
            waits.append(timed(dashboard, "/api/session")[0])

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield waits
    finally:
        done.set()
        thread.join()


def stream_updates(dashboard: Dashboard, recorder: Recorder, run: str, steps: int, shown: int) -> float:
    """Milliseconds from a commit to the reader of a stream, median of 20: at most the server looks four times a second."""
    with RunView(recorder.folder) as view:
        last_id = view.info().last_id
    delays = []
    with urllib.request.urlopen(f"{dashboard.url}api/stream?run={run}:{last_id}", timeout=60) as stream:
        for i in range(20):
            recorder.metrics(steps + 100 + i, {f"m{j}": 2.0 for j in range(shown)})
            recorder.flush()
            start = time.perf_counter()
            while not (line := stream.readline()).startswith(b"data: ") or b'"points":[[' not in line:
                pass
            delays.append(1e3 * (time.perf_counter() - start))
    return statistics.median(delays)


def kills(times: int) -> Row:
    """Recording processes killed at random moments, against what they had recorded until then."""
    lost_s, stale_s, failed = [], [], 0
    with tempfile.TemporaryDirectory() as place:
        folder, shared = Path(place) / "runs", Path(place) / "shared"
        for number in range(times):
            shared.write_bytes(bytes(16))
            process = subprocess.Popen([sys.executable, "-c", KILLED, str(folder), f"r{number}", str(shared)])
            with open(shared, "r+b") as file, mmap.mmap(file.fileno(), 16) as seen:
                while not struct.unpack_from("qd", seen)[1]:
                    time.sleep(0.005)
                time.sleep(random.uniform(0.0, 1.5))
                os.kill(process.pid, signal.SIGKILL)
                killed = time.monotonic()
                process.wait()
                _, last = struct.unpack_from("qd", seen)
            with RunView(folder / f"r{number}") as view:
                while view.info().state == "running":
                    time.sleep(0.01)
                stale_s.append(time.monotonic() - killed)
                failed += view.info().state != "stale"
                points = view.points()
                began = view.info().started
                failed += [p.step for p in points] != list(range(len(points)))
            lost_s.append(last - (points[-1].time if points else began))
            connection = sqlite3.connect(folder / f"r{number}" / "run.db")
            failed += connection.execute("PRAGMA integrity_check").fetchone() != ("ok",)
            connection.close()
    return {
        "times": times,
        "lost_median_s": statistics.median(lost_s),
        "lost_most_s": max(lost_s),
        "stale_most_s": max(stale_s),
        "failed": failed,
    }


def markdown(results: Row) -> str:
    out = ["# What watching costs", "", f"{results['about']}; written by `./fdl bench monitor`."]
    if cost := results.get("overhead"):
        out += [
            "",
            f"A step of {cost['step_ms']:.2f} ms that records two values: with recorder, server and an open stream, and without.",
            f"{cost['rounds']} pairs of {cost['steps']} steps; medians and quartiles.",
            "",
            "| | wall time | processor time of the training's thread |",
            "|---|---|---|",
            *(
                f"| {title} | {_percent(cost[f'{kind}_wall'])} | {_percent(cost[f'{kind}_processor'])} |"
                for kind, title in (("watched", "watched"), ("noise", "without, against itself"))
            ),
        ]
    if rows := results.get("answers"):
        columns = {
            "first_ms": "first curves ms", "update_ms": "again with new points ms", "zoom_ms": "zoomed ms",
            "detail_ms": "about the run ms", "list_ms": "list ms", "stream_ms": "commit to reader ms",
            "longest_wait_ms": "longest wait of another ms", "memory_mb": "memory MB",
        }  # fmt: skip
        out += [
            "",
            f"| points | series | shown | {' | '.join(columns.values())} |",
            f"|---|---|---|{'---|' * len(columns)}",
            *(
                f"| {r['points']:,} | {r['series']:,} | {r['shown']} | {' | '.join(f'{r[c]:.0f}' for c in columns)} |"
                for r in rows
            ),
        ]
    if killed := results.get("kills"):
        out += [
            "",
            f"`kill -9` at {killed['times']} random moments:",
            f"the newest lost point was {killed['lost_median_s']:.2f} s old (median), {killed['lost_most_s']:.2f} s at most;",
            f"stale after {killed['stale_most_s']:.2f} s at most; {killed['failed']} stores not clean.",
        ]
    return "\n".join(out) + "\n"


def _percent(values: list[float]) -> str:
    middle, low, high = (f"{100 * v:+.1f}%" for v in values)
    return f"{middle} ({low} to {high})"


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("--rounds", type=int, default=30, help="pairs for the overhead (default 30; 0 leaves it out)")
    made.add_argument("--kills", type=int, default=100, help="killed processes (default 100; 0 leaves it out)")
    made.add_argument("--no-answers", action="store_true", help="leave out what the server answers")
    return made


def main() -> None:
    options = parser().parse_args()
    torch.set_num_threads(1)
    load = os.getloadavg()[0]
    results: Row = {
        "about": f"torch {torch.__version__}, Python {platform.python_version()}, SQLite {sqlite3.sqlite_version},"
        f" {os.cpu_count()} cores, load {load:.1f} at the start"
    }
    if options.rounds:
        results["overhead"] = overhead(options.rounds)
    if not options.no_answers:
        with tempfile.TemporaryDirectory() as folder:
            results["answers"] = [
                answers(Path(folder), "million", 50_000, 20, 20),
                answers(Path(folder), "wide", 100, 12_000, 20),
            ]
    if options.kills:
        results["kills"] = kills(options.kills)
    text = markdown(results)
    print(text)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "monitor.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    (RESULTS / "monitor.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
