"""The dashboard's pictures, from real trainings in a real browser: `./fdl screenshots`.

The handful that docs/images keeps; with `--all FOLDER` every panel in light, dark and phone width, to look at.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from flodl.monitor import RunView, serve

ROOT = Path(__file__).parents[1]
QUICKSTART = ROOT / "examples" / "quickstart" / "quickstart.py"
PANELS = ("metrics", "epochs", "timeline", "devices", "resources", "model", "config", "log")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
SIZES = {"light": (1360, 850), "dark": (1360, 850), "phone": (390, 844)}
KEPT = (("metrics", "light"), ("timeline", "dark"), ("model", "light"), ("epochs", "dark"), ("metrics", "phone"))


def train(folder: Path, name: str, *arguments: str) -> subprocess.Popen[bytes]:
    config = folder / "config.json"
    config.write_text(
        json.dumps({"values": {"output": {"name": name}}, "origins": {"output.name": {"text": "fdl.yml:2"}}})
    )
    command = [sys.executable, str(QUICKSTART), *arguments]
    env = {**os.environ, "FDL_CONFIG": str(config)}
    return subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def wait_for_epochs(runs: Path, count: int) -> str:
    """The id of the running run, as soon as it has so many epochs."""
    while True:
        for store in runs.glob("*/run.db"):
            with RunView(store.parent) as view:
                if view.info().state == "running" and len(view.epochs()) >= count:
                    return store.parent.name
        time.sleep(0.2)


def settle(page: Page) -> None:
    page.wait_for_selector(".connection.open")
    page.wait_for_timeout(1500)


def shoot(browser: Browser, url: str, panel: str, look: str, target: Path) -> None:
    width, height = SIZES[look]
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if look == "dark" else "light",
        device_scale_factor=2 if look == "phone" else 1,
        reduced_motion="reduce",
    )
    try:
        page = context.new_page()
        page.goto(url)
        settle(page)
        if panel == "metrics" and look != "phone":
            page.get_by_label("Smoothing").fill("34")
            page.get_by_role("tab", name="Metrics").click()
            page.wait_for_timeout(500)
        page.screenshot(path=target)
    finally:
        context.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--all", type=Path, metavar="FOLDER", help="every panel, in light, dark and phone width, into FOLDER"
    )
    everything: Path | None = parser.parse_args().all
    chromium = shutil.which("chromium") or sys.exit("needs Chromium: apt install chromium")
    images = ROOT / "docs" / "images"
    wanted = {
        (panel, look, images / f"dashboard-{panel}{'' if look != 'phone' else '-phone'}.png") for panel, look in KEPT
    }
    if everything is not None:
        everything.mkdir(parents=True, exist_ok=True)
        wanted = {(panel, look, everything / f"{panel}-{look}.png") for panel in PANELS for look in SIZES}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for size in ("32", "128"):
            train(folder, f"batch of {size}", "--epochs", "24", "--batch-size", size).wait()
        training = train(folder, "batch of 64", "--epochs", "4000")
        try:
            live = wait_for_epochs(folder / "runs", 12)
            others = [run.name for run in (folder / "runs").iterdir() if run.name != live]
            with serve(0, folder=folder / "runs", quiet=True) as dashboard, sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
                for panel, look, target in sorted(wanted):
                    overlay = "?with=" + "&with=".join(others) if panel == "config" else ""
                    shoot(browser, f"{dashboard.url}#/run/{live}/{panel}{overlay}", panel, look, target)
                    print(f"wrote {target}")
                browser.close()
        finally:
            training.terminate()
            training.wait()


if __name__ == "__main__":
    main()
