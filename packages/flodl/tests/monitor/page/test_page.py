"""What a user of the page sees and does."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from flodl.monitor import Dashboard, Recorder, RunView, save_html, serve

from .conftest import AXE, Open, Relay, Train


def inspect(page: Page) -> Any:
    return page.evaluate("window.flodl.inspect()")


def line(page: Page, label: str) -> dict[str, Any] | None:
    """The drawn line of that label, of whichever chart has it."""
    for chart in inspect(page)["charts"]:
        for found in chart.get("lines", []):
            if found["label"] == label:
                return dict(found)
    return None


def wait_for(page: Page, condition: Any, seconds: float = 20.0) -> Any:
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, f"not within {seconds} s; the page shows: {page.inner_text('body')[:2000]}"
        page.wait_for_timeout(50)
    return found


def the_run(folder: Path, seconds: float = 60.0) -> Path:
    """The folder of the only run, as soon as it has an epoch."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for store in folder.glob("*/run.db"):
            with RunView(store.parent) as view:
                if view.epochs():
                    return store.parent
        time.sleep(0.05)
    raise AssertionError("the training does not come to its first epoch")


def stored(run: Path, name: str) -> tuple[list[int], list[float]]:
    with RunView(run) as view:
        points = view.series(name)
    return [p.step for p in points], [p.value for p in points]


@pytest.mark.slow
def test_late_join_live_updates_and_buttons(
    tmp_path: Path, train: Train, dashboard: Dashboard, open_page: Open
) -> None:
    training = train()
    run = the_run(tmp_path / "runs")
    page = open_page(dashboard.url)
    loss = wait_for(page, lambda: line(page, "loss"))
    steps, values = stored(run, "loss")
    assert loss["x"][0] == steps[0]  # all that was before is there
    assert loss["y"][0] == values[0]
    before = len(loss["x"])
    wait_for(page, lambda: len(line(page, "loss")["x"]) > before + 20)  # type: ignore[index]
    expect(page.locator(".chip.running").first).to_be_visible()

    page.get_by_role("button", name="Save checkpoint").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Save a checkpoint now?")
    dialog.get_by_role("button", name="Cancel").click()
    expect(dialog).to_be_hidden()
    page.get_by_role("button", name="Save checkpoint").click()
    dialog.get_by_role("button", name="Save checkpoint").click()
    expect(dialog).to_be_hidden()
    page.get_by_role("tab", name="Log").click()
    audit = page.get_by_role("region", name="Requests")
    expect(audit).to_contain_text("save")
    expect(audit).to_contain_text("taken after")

    page.get_by_role("button", name="Stop", exact=True).click()
    dialog.get_by_role("button", name="Stop training").click()
    training.wait(30)
    expect(page.locator(".head .chip.stopped")).to_be_visible()
    expect(page.get_by_role("button", name="Stop", exact=True)).to_be_hidden()
    expect(page.locator("[role=status][aria-live]")).to_contain_text("is stopped")
    with RunView(run) as view:
        assert [(row.action, row.taken is not None) for row in view.audit()] == [("save", True), ("stop", True)]

    page.get_by_role("tab", name="Metrics").click()
    steps, values = stored(run, "loss")
    loss = wait_for(page, lambda: (found := line(page, "loss")) and len(found["x"]) == len(steps) and found)
    assert (loss["x"], loss["y"]) == (steps, values)  # the page's data is the store's


@pytest.mark.slow
def test_reconnects_to_a_new_server_and_misses_nothing(
    tmp_path: Path, built_page: None, train: Train, open_page: Open
) -> None:
    training = train(epochs=40, pause=0.01)
    run = the_run(tmp_path / "runs")
    with serve(0, folder=tmp_path / "runs", quiet=True) as first:
        page = open_page(first.url, offline=True)
        wait_for(page, lambda: line(page, "loss"))
        first.process.kill()
        first.process.wait()
        expect(page.locator(".connection.lost")).to_contain_text("connection lost")
        port = first.port
    page.wait_for_timeout(500)
    with serve(port, folder=tmp_path / "runs", quiet=True) as second:
        assert second.port == port
        page.get_by_role("button", name="Try now").click()
        expect(page.locator(".connection.open")).to_be_visible()
        training.wait(60)
        expect(page.locator(".head .chip.finished")).to_be_visible()
        steps, values = stored(run, "loss")
        loss = wait_for(page, lambda: (found := line(page, "loss")) and len(found["x"]) >= len(steps) and found)
        assert (loss["x"], loss["y"]) == (steps, values)


def test_cut_connections_lose_nothing(tmp_path: Path, relay: Relay, open_page: Open) -> None:
    with Recorder(tmp_path / "runs", run_id="r") as recorder:
        recorder.metric("loss", 0.0, step=0)
        recorder.flush()
        page = open_page(f"http://127.0.0.1:{relay.port}/", offline=True)
        wait_for(page, lambda: line(page, "loss"))
        for step in range(1, 1001):
            recorder.metric("loss", math.sin(step), step=step)
            if step % 200 == 0:
                recorder.flush()
                page.wait_for_timeout(300)
                relay.cut()
    loss = wait_for(page, lambda: (found := line(page, "loss")) and len(found["x"]) > 1000 and found)
    assert loss["x"] == list(range(1001))
    assert loss["y"] == [math.sin(step) for step in range(1001)]


def test_two_tabs_share_one_stream(tmp_path: Path, relay: Relay, open_page: Open) -> None:
    with Recorder(tmp_path / "runs", run_id="r") as recorder:
        recorder.metric("loss", 0.0, step=0)
        recorder.flush()
        url = f"http://127.0.0.1:{relay.port}/"
        one = open_page(url)
        wait_for(one, lambda: line(one, "loss"))
        expect(one.locator(".connection.open")).to_be_visible()
        two = open_page(url)
        wait_for(two, lambda: line(two, "loss"))
        recorder.metric("loss", 1.0, step=1)
        for page in (one, two):
            wait_for(page, lambda page=page: line(page, "loss")["x"] == [0, 1])
        streams = [request for request in relay.requests if "/api/stream" in request]
        assert len(streams) == 1, streams


STRANGE = {
    "</script><script>window.hacked = 1</script>": 1.0,
    "<img src=x onerror='window.hacked = 1'>": 2.0,
    "\"quotes\" & 'more'": 3.0,
    "🚀 emoji\nand a newline": 4.0,
    "n" * 10_000: 5.0,
    "..": 6.0,
}


def test_strange_names_are_text(tmp_path: Path, dashboard: Dashboard, open_page: Open) -> None:
    names = list(STRANGE)
    config = {"evil": names[0], "long": "x" * 10_000, "nested": {names[1]: names[2]}}
    with Recorder(tmp_path / "runs", name=names[0], config=config, origins={"evil": names[1]}) as recorder:
        for step in range(3):
            recorder.metrics(step, STRANGE)
        recorder.epoch(0, STRANGE, seconds=1.0)
        recorder.event("warning", text=names[1])
        recorder.event(names[0], **{names[1]: names[3]})
        recorder.artifact(
            "model.svg", '<svg xmlns="http://www.w3.org/2000/svg"><script>window.hacked = 1</script></svg>'
        )
        recorder.artifact(names[1], names[0])
    page = open_page(dashboard.url)
    page.set_viewport_size({"width": 1280, "height": 5000})  # charts out of sight are not drawn
    wait_for(page, lambda: all(line(page, name) for name in names))
    page.set_viewport_size({"width": 1280, "height": 900})
    assert page.locator(".head h1").inner_text() == names[0]
    for tab in ("Epochs", "Timeline", "Devices", "Resources", "Model", "Configuration", "Log"):
        page.get_by_role("tab", name=tab).click()
        expect(page.get_by_role("tab", name=tab)).to_have_attribute("aria-selected", "true")
        page.wait_for_timeout(150)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{tab} is wider than the page"
        if tab == "Configuration":
            expect(page.get_by_role("region", name="Fields of the configuration")).to_contain_text(names[0])
            page.get_by_role("button", name="all 10000 characters").click()
            expect(page.locator("td", has_text="x" * 10_000)).to_be_visible()
    assert page.evaluate("window.hacked") is None
    assert page.evaluate("document.querySelectorAll('#app script, #app img[src=x]').length") == 0


def test_gaps_scales_smoothing_and_zoom(tmp_path: Path, dashboard: Dashboard, open_page: Open) -> None:
    with Recorder(tmp_path / "runs") as recorder:
        for step in range(200):
            loss = math.nan if step in (50, 52) else 2.0 - step / 200
            recorder.metrics(step, {"loss": loss, "lr": 1e-4 * (1 + step / 200), "constant": 0.3})
            recorder.metrics(step, {"head.0.norm": 10.0 + step, "head.1.norm": 12.0 + step, "head.norm": 1e-6 * step})
    page = open_page(dashboard.url)
    loss = wait_for(page, lambda: line(page, "loss"))
    assert loss["gaps"] == [50, 52]
    assert loss["y"][50] is None
    assert loss["y"][51] == 2.0 - 51 / 200
    expect(page.locator("[data-chart=loss] .badge")).to_contain_text("2 not finite")

    wait_for(page, lambda: len(inspect(page)["charts"]) >= 5)
    charts = {frozenset(found["label"] for found in chart["lines"]): chart for chart in inspect(page)["charts"]}
    assert set(charts) == {
        frozenset(names) for names in (["loss"], ["lr"], ["constant"], ["head.0.norm", "head.1.norm"], ["head.norm"])
    }  # no line is squashed flat by another scale
    for chart in charts.values():
        values = [y for found in chart["lines"] for y in found["y"] if y is not None]
        assert chart["y"][0] <= min(values)
        assert chart["y"][1] >= max(values)
        assert len(set(chart["yTicks"])) == len(chart["yTicks"]) >= 2, chart["yTicks"]

    plot = page.locator("[data-chart=loss] .u-over")
    box = plot.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 60, steps=5)
    page.mouse.up()
    chart = wait_for(
        page, lambda: next((c for c in inspect(page)["charts"] if c["title"] == "loss" and c["zoom"]), None)
    )
    assert chart["zoom"]["min"] == pytest.approx(199 * 0.25, abs=3)
    assert chart["zoom"]["max"] == pytest.approx(199 * 0.5, abs=3)
    page.get_by_role("button", name="Show all").click()
    wait_for(page, lambda: all(c["zoom"] is None for c in inspect(page)["charts"]))

    page.get_by_role("button", name="Log scale").click()
    wait_for(page, lambda: all(c["log"] for c in inspect(page)["charts"]))
    assert all(len(c["yTicks"]) >= 1 for c in inspect(page)["charts"])


def test_keyboard(tmp_path: Path, dashboard: Dashboard, open_page: Open) -> None:
    with Recorder(tmp_path / "runs", run_id="a") as recorder:
        for step in range(100):
            recorder.metrics(step, {"loss": 1.0 / (step + 1), "eval_loss": 1.5 / (step + 1)})
    with Recorder(tmp_path / "runs", run_id="b") as recorder:
        recorder.metric("loss", 1.0, step=1)
    page = open_page(f"{dashboard.url}#/run/a/metrics")
    wait_for(page, lambda: line(page, "loss"))
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="To the charts")).to_be_focused()
    page.get_by_role("tab", name="Metrics").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Epochs")).to_be_focused()
    expect(page.get_by_role("tab", name="Epochs")).to_have_attribute("aria-selected", "true")
    page.keyboard.press("Home")
    plot = page.locator("[data-chart=loss] .plot")
    plot.focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("[data-chart=loss] p[aria-live]")).to_contain_text("step 0: loss 1, eval_loss 1.5")
    page.keyboard.press("+")
    wait_for(page, lambda: inspect(page)["charts"][0]["zoom"] is not None)
    page.keyboard.press("0")
    wait_for(page, lambda: inspect(page)["charts"][0]["zoom"] is None)
    page.get_by_role("button", name="Show only eval_loss").focus()
    page.keyboard.press("Enter")
    wait_for(page, lambda: len(inspect(page)["charts"][0]["hidden"]) == 1)
    page.keyboard.press("Enter")
    wait_for(page, lambda: inspect(page)["charts"][0]["hidden"] == [])

    page.get_by_role("checkbox", name="Overlay b").focus()
    page.keyboard.press("Space")
    wait_for(page, lambda: inspect(page)["overlaid"] == ["b"])
    wait_for(page, lambda: line(page, "b"))  # two runs in one chart, named by run
    page.reload()  # the address tells the whole view
    wait_for(page, lambda: line(page, "a") and line(page, "b"))


@pytest.mark.slow
def test_timeline_goes_down_to_a_step(tmp_path: Path, train: Train, dashboard: Dashboard, open_page: Open) -> None:
    train(epochs=6, pause=0.001).wait(60)
    run = the_run(tmp_path / "runs")
    page = open_page(f"{dashboard.url}#/run/{run.name}/timeline")
    drawn = wait_for(page, lambda: next((c for c in inspect(page)["charts"] if c.get("data")), None))
    lanes = {lane["lane"] for rank in drawn["data"]["ranks"] for lane in rank["lanes"]}
    assert {"data", "compute"} <= lanes
    page.get_by_label("Step", exact=True).fill("33")
    page.get_by_role("button", name="Go").click()

    def single() -> Any:
        for chart in inspect(page)["charts"]:
            for rank in (chart.get("data") or {"ranks": []})["ranks"]:
                for lane in rank["lanes"]:
                    for start, seconds, step, count, _ in lane["spans"]:
                        if lane["lane"] == "compute" and step == 33 and count == 1:
                            return chart["view"]["from"] <= start and start + seconds <= chart["view"]["to"]
        return False

    wait_for(page, single)
    table = page.get_by_role("region", name="Parts of the time in sight")
    expect(table).to_contain_text("compute")
    page.get_by_role("tab", name="Devices").click()
    wait_for(page, lambda: line(page, "rank 0"))


def test_empty_and_unreadable(tmp_path: Path, dashboard: Dashboard, open_page: Open) -> None:
    page = open_page(dashboard.url)
    expect(page.locator(".empty")).to_contain_text("No run yet")
    broken = tmp_path / "runs" / "broken"
    broken.mkdir(parents=True)
    (broken / "run.db").write_bytes(b"no database " * 100)
    expect(page.locator(".chip.unreadable")).to_be_visible()
    expect(page.locator(".empty")).to_contain_text("not a database")
    with Recorder(tmp_path / "runs", run_id="first", name="the first") as recorder:
        recorder.metric("loss", 1.0, step=0)
        expect(page.locator(".run-name", has_text="the first")).to_be_visible()


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_accessible(tmp_path: Path, dashboard: Dashboard, open_page: Open, colours: Any) -> None:
    with Recorder(tmp_path / "runs", run_id="other", name="other") as recorder:
        recorder.metric("loss", 1.0, step=1)
    with Recorder(tmp_path / "runs", run_id="r", config={"lr": 0.1}, origins={"lr": "default"}) as recorder:
        recorder.totals(epochs=4, steps=40)
        for step in range(20):
            recorder.metrics(step, {"loss": 1.0 / (step + 1), "eval_loss": math.nan, "head.a.norm": 3.0})
        recorder.event("steps", start=time.time() - 1, seconds=0.02, first=0, data_us=[300] * 20, compute_us=[700] * 20)
        recorder.epoch(0, {"loss": 0.1, "accuracy": 0.9}, seconds=1.0)
        recorder.epoch(1, {"loss": 0.2, "accuracy": 0.8}, seconds=1.0)
        recorder.event("warning", text="the gradient is large")
        recorder.event("share", share={"0": 0.6, "1": 0.4})
        recorder.artifact("model.svg", '<svg xmlns="http://www.w3.org/2000/svg" width="40" height="40"></svg>')
        recorder.artifact("model.txt", "Linear(2, 1)")
        recorder.flush()
        page = open_page(f"{dashboard.url}#/run/r/metrics?with=other")
        page.emulate_media(color_scheme=colours, reduced_motion="reduce")
        wait_for(page, lambda: line(page, "other"))
        page.evaluate(AXE.read_text())
        found: list[str] = []

        def check(where: str) -> None:
            result = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
            for violation in result["violations"]:
                if violation["impact"] in ("serious", "critical"):
                    nodes = [(node["html"][:200], node["any"][:1]) for node in violation["nodes"][:3]]
                    found.append(f"{where}: {violation['id']}: {json.dumps(nodes, indent=1)}")

        for tab in ("Metrics", "Epochs", "Timeline", "Devices", "Resources", "Model", "Configuration", "Log"):
            page.get_by_role("tab", name=tab).click()
            page.wait_for_timeout(200)
            check(tab)
        page.get_by_role("button", name="Stop", exact=True).click()
        check("dialog")
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_be_hidden()
        page.set_viewport_size({"width": 390, "height": 800})
        page.get_by_role("button", name="Runs").click()
        check("phone")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert found == [], "\n".join(found)


def test_report_opens_from_disk(tmp_path: Path, built_page: None, open_page: Open) -> None:
    strange = "</script><script>window.hacked = 1</script><!--flodl-data--> $& 🚀"
    with Recorder(tmp_path / "runs", run_id="r", name=strange, config={"evil": strange}) as recorder:
        for step in range(300):
            recorder.metrics(step, {"loss": math.nan if step == 7 else 1 / (step + 1), strange: 1.0})
        recorder.event("steps", start=time.time() - 1, seconds=0.02, first=0, data_us=[300] * 20, compute_us=[700] * 20)
        recorder.epoch(0, {"loss": 0.1}, seconds=1.0)
        recorder.artifact("model.svg", '<svg xmlns="http://www.w3.org/2000/svg" width="40" height="40"></svg>')
    save_html(tmp_path / "runs" / "r", tmp_path / "report.html")
    page = open_page((tmp_path / "report.html").as_uri())
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    loss = wait_for(page, lambda: line(page, "loss"))
    assert loss["gaps"] == [7]
    assert page.locator(".head h1").inner_text() == strange
    expect(page.locator(".connection, .controls")).to_have_count(0)
    page.locator("[data-chart=loss] .plot").focus()
    page.keyboard.press("+")
    wait_for(page, lambda: inspect(page)["charts"][0]["zoom"] is not None)
    for tab in ("Epochs", "Timeline", "Devices", "Resources", "Model", "Configuration", "Log"):
        page.get_by_role("tab", name=tab).click()
        expect(page.get_by_role("tab", name=tab)).to_have_attribute("aria-selected", "true")
        page.wait_for_timeout(100)
    page.get_by_role("tab", name="Model").click()
    wait_for(page, lambda: page.evaluate("document.querySelector('.paper img')?.naturalWidth === 40"))
    page.get_by_role("tab", name="Timeline").click()
    wait_for(page, lambda: any(c.get("spans") for c in inspect(page)["charts"]))
    assert [url for url in requests if not url.startswith(("blob:", "data:"))] == []
    assert page.evaluate("window.hacked") is None


def test_a_resumed_run_drops_what_it_does_again(tmp_path: Path, dashboard: Dashboard, open_page: Open) -> None:
    with Recorder(tmp_path / "runs", run_id="r") as recorder:
        for step in range(100):
            recorder.metric("loss", float(step), step=step)
        recorder.flush()
        page = open_page(dashboard.url)
        wait_for(page, lambda: (found := line(page, "loss")) and len(found["x"]) == 100)
        recorder.cut_after(49)
        for step in range(50, 80):
            recorder.metric("loss", -float(step), step=step)
        recorder.flush()
        expected = [float(step) for step in range(50)] + [-float(step) for step in range(50, 80)]
        wait_for(page, lambda: line(page, "loss")["y"] == expected)  # type: ignore[index]


def test_token(tmp_path: Path, built_page: None, open_page: Open, context: BrowserContext) -> None:
    with Recorder(tmp_path / "runs", run_id="r") as recorder:
        recorder.metric("loss", 1.0, step=1)
        recorder.flush()
        with serve(0, folder=tmp_path / "runs", token="secret-secret-secret", quiet=True) as dashboard:
            page = open_page(dashboard.url)
            wait_for(page, lambda: line(page, "loss"))
            assert "secret" not in page.url
            recorder.metric("loss", 2.0, step=2)
            wait_for(page, lambda: line(page, "loss")["y"] == [1.0, 2.0])  # type: ignore[index]
            page.reload()  # the tab keeps it
            wait_for(page, lambda: line(page, "loss"))
            stranger = context.new_page()
            stranger.goto(dashboard.url.split("#")[0])
            expect(stranger.get_by_role("alert")).to_contain_text("#token=")
