"""What the benchmarks share: turns, the environment, the refusal to publish on a busy machine, tables and charts."""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil
import torch

from flodl.train.machine import identity

RESULTS = Path(__file__).parent / "results"
BUSY, SAMPLE_SECONDS = 0.2, 3.0


@cache
def others() -> float:
    """How many CPUs other programs keep busy, over a few seconds before this one computes. (The load average of a minute
    still has the benchmark before.)"""
    return psutil.cpu_percent(SAMPLE_SECONDS) / 100 * (psutil.cpu_count() or 1)


def environment(packages: Sequence[str] = ()) -> dict[str, Any]:
    """All that a reader needs to judge the figures."""
    versions = {}
    for name in ("torch", "numpy", *packages):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "not installed"
    return {
        "machine": identity(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "busy_cpus": others(),
        "versions": versions,
        "settings": {k: v for k, v in os.environ.items() if k.startswith(("OMP_", "MKL_", "KMP_", "MALLOC_"))},
        "written": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    }


def add_options(parser: argparse.ArgumentParser) -> None:
    about = "quick (the default): few rounds, nothing written; publish: ten, written to results/"
    parser.add_argument("form", nargs="?", choices=["quick", "publish"], default="quick", help=about)
    parser.add_argument("--quick", action="store_true", help="the same as quick")
    parser.add_argument("--force", action="store_true", help="publish on a busy machine, which the table then says")
    parser.add_argument("--threads", type=int, help="torch's threads (default: torch's own choice)")
    parser.add_argument("--rounds", type=int, help="rounds in turns (default 3, publish 10)")


def refuse_if_busy(options: argparse.Namespace) -> None:
    """Publishing needs a machine to itself."""
    if options.form == "publish" and others() > BUSY and not options.force:
        sys.exit(
            f"other programs keep {others():.2f} CPUs busy (see `top`), and figures taken now are not worth publishing. "
            f"Wait until it is below {BUSY}, or give --force: the table then says so."
        )


def in_turns(
    forms: Mapping[str, Callable[[int], float]], steps: Mapping[str, int], rounds: int
) -> dict[str, list[float]]:
    """Seconds a step of each form in each round. A form is called with its number of steps; the order alternates."""
    seconds: dict[str, list[float]] = {name: [] for name in forms}
    for number in range(rounds):
        for name in list(forms) if number % 2 else reversed(forms):
            seconds[name].append(forms[name](steps[name]) / steps[name])
    return seconds


def ratios(base: Sequence[float], other: Sequence[float]) -> dict[str, float]:
    """How many times faster `other` is: the median over the rounds, and the median distance from it."""
    each = [b / o for b, o in zip(base, other, strict=True)]
    middle = statistics.median(each)
    return {"ratio": middle, "mad": statistics.median(abs(r - middle) for r in each)}


def heading(title: str, command: str, env: Mapping[str, Any], rounds: int) -> list[str]:
    versions = ", ".join(f"{k} {v}" for k, v in env["versions"].items())
    busy = (
        f" **The machine was busy ({env['busy_cpus']:.1f} CPUs): do not rely on these figures.**"
        if env["busy_cpus"] > BUSY
        else ""
    )
    return [
        f"# {title}",
        "",
        (
            f"{env['machine']}, {env['threads']} threads; Python {env['python']}, {versions}; {rounds} rounds in turns, "
            f"{env['busy_cpus']:.2f} CPUs busy with other programs at the start; {env['written']}, by `{command}`.{busy}"
        ),
        "",
    ]


def chart(title: str, rows: Mapping[str, Mapping[str, float]], unit: str = "times plain PyTorch's speed") -> str:
    """Horizontal bars in SVG: for each row one bar a series; a line at 1."""
    series = list(next(iter(rows.values())))
    colours = ("#9aa5b1", "#5b8def", "#e0843a", "#2e9e6b", "#a05bc7", "#c7515b")
    most = max(max(v for v in row.values() if math.isfinite(v)) for row in rows.values())
    bar, left, width = 11, 130, 560
    height = 70 + len(rows) * (bar * len(series) + 12)
    x = lambda value: left + width * value / most  # noqa: E731
    out = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 60}" height="{height}" '
            'font-family="sans-serif" font-size="11">'
        ),
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="10" y="18" font-size="14">{title} ({unit})</text>',
    ]
    for i, name in enumerate(series):
        out.append(f'<rect x="{left + i * 125}" y="28" width="10" height="10" fill="{colours[i % 6]}"/>')
        out.append(f'<text x="{left + i * 125 + 14}" y="37">{name}</text>')
    y = 52
    for label, row in rows.items():
        out.append(f'<text x="{left - 8}" y="{y + bar * len(series) / 2 + 4}" text-anchor="end">{label}</text>')
        for i, value in enumerate(row.values()):
            if math.isfinite(value):
                out.append(
                    f'<rect x="{left}" y="{y}" width="{x(value) - left:.1f}" height="{bar - 2}" fill="{colours[i % 6]}"/>'
                )
                out.append(f'<text x="{x(value) + 4:.1f}" y="{y + bar - 3}" font-size="9">{value:.2f}</text>')
            y += bar
        y += 12
    out.append(f'<line x1="{x(1):.1f}" y1="46" x2="{x(1):.1f}" y2="{y - 6}" stroke="black" stroke-dasharray="3 3"/>')
    return "\n".join([*out, "</svg>", ""])


def write(name: str, results: Mapping[str, Any], text: str, svg: str) -> None:
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    (RESULTS / f"{name}.md").write_text(text, encoding="utf-8")
    (RESULTS / f"{name}.svg").write_text(svg, encoding="utf-8")
