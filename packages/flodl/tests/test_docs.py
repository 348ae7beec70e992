"""The documentation's site is built strictly: a link or a name that is not there fails. Its Python runs in docs/site."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from flodl_cli.builtins import BUILTINS

ROOT = Path(__file__).parents[3]


def test_the_site_is_built_strictly_and_has_every_page_and_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    pages = {
        page.relative_to(ROOT / "docs" / "site").with_suffix("") for page in (ROOT / "docs" / "site").rglob("*.md")
    }
    built = {page.relative_to(tmp_path).with_suffix("") for page in tmp_path.rglob("*.html")}
    assert pages <= built
    listed = (tmp_path / "index.html").read_text("utf-8")
    assert not [page for page in pages if f'href="{page}.html"' not in listed and str(page) != "index"], (
        "not in the menu"
    )
    reference = (tmp_path / "reference" / "cli.html").read_text("utf-8")
    assert not [name for name in BUILTINS if f"fdl {name}" not in reference]
    names = (tmp_path / "reference" / "api.html").read_text("utf-8")
    assert "setup_head" in names
