"""How fast `fdl` starts: whole processes, from the call to its end, against the limits that the project sets itself."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

ENTRY = """\
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--data", choices=["digits", "fashion-mnist"])
parser.parse_args()
"""


@dataclass(frozen=True)
class Case:
    """One call, and how long it may take."""

    name: str
    words: tuple[str, ...]
    limit_ms: float | None = None
    project: str = "small"
    cold: bool = False  # without what earlier calls left in the cache


@dataclass(frozen=True)
class Row:
    """What one call took over all rounds."""

    name: str
    median_ms: float
    least_ms: float
    most_ms: float
    limit_ms: float | None


def cases(fdl: str) -> list[Case]:
    python = sys.executable
    return [
        Case("python -c pass (what Python itself takes)", (python, "-c", "pass")),
        Case("python -c 'import click' (for comparison)", (python, "-c", "import click")),
        Case("fdl --version", (fdl, "--version"), 100),
        Case("fdl --help", (fdl, "--help"), 100),
        Case("fdl config --help", (fdl, "config", "--help")),
        Case("fdl TASK --help", (fdl, "task", "--help")),
        Case("fdl TASK (a shell line that does nothing)", (fdl, "task")),
        Case("completion of commands", (fdl, "--complete", "fish", ""), 120),
        Case("completion of an entry's values", (fdl, "--complete", "fish", "train", "--data", ""), 120),
        Case("fdl config show, 2,000 lines", (fdl, "config", "show"), 400, "big"),
        Case("fdl config show, 2,000 lines, nothing cached", (fdl, "config", "show"), 400, "big", cold=True),
        Case("fdl --help, 335 commands", (fdl, "--help"), None, "big"),
    ]


def make_projects(folder: Path) -> None:
    """An ordinary project with an entry, and one with a manifest of 2,000 lines."""
    small, big = folder / "small", folder / "big"
    (small / "train").mkdir(parents=True)
    big.mkdir()
    (small / "fdl.yml").write_text("commands:\n  train: { path: train }\n  task: { run: ':' }\n")
    (small / "train" / "fdl.yml").write_text("entry: python train.py\n")
    (small / "train" / "train.py").write_text(ENTRY)
    lines = ["commands:"]
    for i in range(333):
        lines += [
            f"  task{i}:",
            f"    run: ':'  # task {i}",
            "    env:",
            f"      A{i}: 'text'",
            "      B: 3",
            "    needs: []",
        ]
    (big / "fdl.yml").write_text("\n".join(lines) + "\n")


def measure(case: Case, folder: Path, home: Path) -> float:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("FDL_") and k != "PYTHONDONTWRITEBYTECODE"}
    cache = home / ("nothing" if case.cold else ".cache")
    if case.cold:
        cache.write_text("")  # a file where the cache folder would be
    env = {**kept, "HOME": str(home), "XDG_CACHE_HOME": str(cache)}
    start = time.perf_counter()
    process = subprocess.run(case.words, cwd=folder / case.project, env=env, capture_output=True, check=False)
    took = time.perf_counter() - start
    if process.returncode:
        sys.exit(f"{case.name}: exit code {process.returncode}\n{process.stderr.decode()}")
    return took * 1e3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="how often each call is measured")
    parser.add_argument("--json", action="store_true", help="print data instead of a table")
    args = parser.parse_args()
    fdl = str(Path(sys.executable).with_name("fdl"))
    took: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder, home = Path(name), Path(name, "home")
        home.mkdir()
        make_projects(folder)
        for case in cases(fdl):
            measure(case, folder, home)  # bytecode and caches, as after the first call of a day
        for _ in range(args.rounds):  # interleaved, so that a busy moment hits all alike
            for case in cases(fdl):
                took.setdefault(case.name, []).append(measure(case, folder, home))
    rows = [Row(c.name, statistics.median(t := took[c.name]), min(t), max(t), c.limit_ms) for c in cases(fdl)]
    report(rows, args.json)
    return 0 if all(r.limit_ms is None or r.median_ms < r.limit_ms for r in rows) else 1


def report(rows: list[Row], as_json: bool) -> None:
    machine = {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpus": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
    }
    if as_json:
        print(json.dumps({"machine": machine, "rows": [asdict(r) for r in rows]}, indent=2))
        return
    print(", ".join(f"{key} {value}" for key, value in machine.items()))
    print(f"{'':46} {'median':>8} {'least':>8} {'most':>8} {'limit':>8}  (ms)")
    for row in rows:
        limit = "" if row.limit_ms is None else f"{row.limit_ms:.0f}"
        mark = "  over" if row.limit_ms is not None and row.median_ms >= row.limit_ms else ""
        print(f"{row.name:46} {row.median_ms:8.0f} {row.least_ms:8.0f} {row.most_ms:8.0f} {limit:>8}{mark}")


if __name__ == "__main__":
    sys.exit(main())
