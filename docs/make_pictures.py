"""Draws README's pictures from real runs: `./fdl pictures`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

ROOT = Path(__file__).parents[1]
WIDTH = 124  # characters


def quickstart() -> list[str]:
    """What `./fdl quickstart` prints, without the epochs in the middle."""
    script = ROOT / "examples" / "quickstart" / "quickstart.py"
    env = {**os.environ, "COLUMNS": str(WIDTH)}
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([sys.executable, script], cwd=folder, env=env, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    return [*lines[:4], "...", *lines[-8:]]


def styled(line: str) -> Text:
    """As on a terminal: durations and memory are quieter than metrics."""
    text = Text(line)
    text.highlight_regex(r"\[[^]]*ETA[^]]*\]", "cyan")
    text.highlight_regex(r"RAM .*", "dim")
    text.highlight_regex(r"test accuracy [\d.]+", "bold green")
    return text


def main() -> None:
    console = Console(record=True, width=WIDTH, file=open(os.devnull, "w"))  # noqa: SIM115 - lives as long as the program
    console.print(Text("$ ./fdl quickstart", style="bold"))
    for line in quickstart():
        console.print(styled(line))
    svg = console.export_svg(title="floDl", theme=MONOKAI)
    # the font of the reader's system: a picture loads nothing from elsewhere
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL).replace("Fira Code", "monospace")
    target = ROOT / "docs" / "images" / "quickstart.svg"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(svg, encoding="utf-8")
    print(f"wrote {target.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
