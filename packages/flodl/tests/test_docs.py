"""The documentation's site is built strictly: a link or a name that is not there fails. Its Python runs in docs/site."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import flodl as fl
from flodl_cli.builtins import BUILTINS

ROOT = Path(__file__).parents[3]
PAGES = ROOT / "docs" / "site"
# Of `distributed`, most is for the trainer; the page shows what a user calls.
MODULES = ("checkpoint", "data", "hf", "monitor")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_is_built_and_in_the_menu(site: Path) -> None:
    pages = {page.relative_to(PAGES).with_suffix("") for page in PAGES.rglob("*.md")}
    assert pages <= {page.relative_to(site).with_suffix("") for page in site.rglob("*.html")}
    listed = (site / "index.html").read_text("utf-8")
    assert not [page for page in pages if f'href="{page}.html"' not in listed and str(page) != "index"]


def test_the_references_have_every_command_and_every_public_name(site: Path) -> None:
    reference = (site / "reference" / "cli.html").read_text("utf-8")
    assert not [name for name in BUILTINS if f"fdl {name}" not in reference]
    shown = set(re.findall(r'id="flodl\.([\w.]+)"', (site / "reference" / "api.html").read_text("utf-8")))
    errors = {name.removeprefix("errors.") for name in shown}
    assert set(fl.__all__) - {"__version__", "distributed"} <= shown | errors
    assert "distributed.simulate" in shown
    for module in MODULES:
        names = importlib.import_module(f"flodl.{module}").__all__
        missing = {f"{module}.{name}" for name in names} - shown
        assert not {name for name in missing if f"{name}.{name.partition('.')[2]}" not in shown}  # save of save.py
    assert {"Graph.freeze", "Graph.observe", "Graph.svg"} <= shown


def test_every_fence_is_shown_as_code(site: Path) -> None:
    assert not [page.name for page in site.rglob("*.html") if "```" in page.read_text("utf-8")]


def test_python_is_marked_so_that_it_runs_or_says_that_it_does_not() -> None:
    kinds = {
        (page.name, kind)
        for page in PAGES.rglob("*.md")
        for kind in re.findall(r"^ *```+ *([^\n`]*py[^\n`]*)$", page.read_text("utf-8"), re.MULTILINE | re.IGNORECASE)
    }
    assert kinds
    assert not [found for found in kinds if found[1] not in ("python", "python no-run")]
