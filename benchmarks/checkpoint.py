"""What saving in the background costs a training: the same steps with a checkpoint every N of them, and without.

Segments of N steps take turns, one with a checkpoint at its start, one without; the next one begins when the checkpoint is on
disk, so that each carries its own cost. Wall time, because the thread that writes takes a processor from somebody: the
machine should be idle, and the load is recorded. The processor time of a checkpoint, copy and writing together, depends less
on that; it is what one costs where training uses every processor. Results go to `results/checkpoint.json` and `.md`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import nn

import flodl as fl

RESULTS = Path(__file__).parent / "results"
GOAL_PERCENT = 2.0


def training(width: int, batch: int) -> tuple[nn.Module, torch.optim.Optimizer, Any]:
    """A model with AdamW, and a function that takes one step on random data."""
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (nn.Linear(width, width), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(width, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x, y = torch.randn(batch, width), torch.randint(10, (batch,))

    def step() -> None:
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, optimizer, step


def measure(width: int, batch: int, every_s: float, rounds: int, folder: Path) -> dict[str, Any]:
    """One size of model: seconds with and without a checkpoint, in turns."""
    model, optimizer, step = training(width, batch)
    for _ in range(5):
        step()
    started = time.perf_counter()
    for _ in range(5):
        step()
    steps = max(5, round(every_s / ((time.perf_counter() - started) / 5)))
    series = fl.checkpoint.Series(folder / str(width), keep_last=2)
    content = {"model": model, "optimizer": optimizer, "extra": {"rng": fl.checkpoint.rng_state()}}
    number, copies, writes, pairs = 0, [], [], []
    for round_ in range(rounds + 1):
        seconds = {}
        for saving in (True, False) if round_ % 2 else (False, True):
            started = time.perf_counter()
            if saving:
                number += 1
                series.save(step=number, **content)
                copied = time.perf_counter() - started
            for _ in range(steps):
                step()
            seconds[saving] = time.perf_counter() - started
            series.wait()
        if round_:  # the first one finds its memory
            copies.append(copied)
            pairs.append((seconds[True], seconds[False]))
            writes.append(series.written()[-1].seconds)
        else:
            series.written()
    series.close()
    processor = processor_s(folder / "foreground", content)
    size = sum(file.stat().st_size for file in (folder / str(width)).rglob("*") if file.is_file()) / 2
    costs = sorted(a - b for a, b in pairs)
    without = statistics.median(b for _, b in pairs)
    fifth = len(costs) // 5
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "checkpoint_mb": size / 1e6,
        "steps": steps,
        "segment_s": without,
        "copy_ms": 1e3 * statistics.median(copies),
        "write_s": statistics.median(writes),
        "processor_ms": 1e3 * processor,
        "processor_percent": 100 * processor / without,
        "cost_ms": 1e3 * statistics.median(costs),
        "cost_low_ms": 1e3 * costs[fifth],
        "cost_high_ms": 1e3 * costs[-1 - fifth],
        "percent": 100 * statistics.median(costs) / without,
    }


def processor_s(folder: Path, content: dict[str, Any]) -> float:
    """Seconds of processor time for one checkpoint, copied and written by this thread."""
    series, spent = fl.checkpoint.Series(folder, background=False), []
    for step in range(8):
        started = time.thread_time()
        series.save(step=step, **content)
        spent.append(time.thread_time() - started)
    series.close()
    shutil.rmtree(folder)
    return statistics.median(spent[2:])


def report(rows: list[dict[str, Any]], machine: dict[str, Any]) -> str:
    torch_, load = f"torch {machine['torch']} with {machine['threads']} threads", machine["load_before"]
    where = f"{machine['processor']}, {machine['cores']} cores, {torch_}; load of the machine before: {load:.1f}."
    names = ["parameters", "checkpoint", "one every", "copy", "written in", "processor time", "cost (middle 60 %)"]
    lines = [
        "# Saving in the background",
        "",
        f"{where} Goal: at most {GOAL_PERCENT:g} % of the throughput. Training waits for the copy only.",
        "",
        f"| {' | '.join(names)} |",
        f"|{'---:|' * len(names)}",
    ]
    for row in rows:
        cells = [
            f"{row['parameters'] / 1e6:.2f} M",
            f"{row['checkpoint_mb']:.1f} MB",
            f"{row['steps']} steps, {row['segment_s']:.1f} s",
            f"{row['copy_ms']:.1f} ms",
            f"{row['write_s']:.2f} s",
            f"{row['processor_ms']:.0f} ms, {row['processor_percent']:.2f} %",
            f"{row['cost_ms']:.0f} ms ({row['cost_low_ms']:.0f} to {row['cost_high_ms']:.0f}), {row['percent']:.2f} %",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9, help="pairs of segments for each model")
    parser.add_argument(
        "--every", type=float, default=30.0, help="seconds between two checkpoints (output.save_seconds)"
    )
    parser.add_argument("--widths", type=int, nargs="+", default=[256, 1024], help="features of the layers")
    parser.add_argument("--batch", type=int, default=64, help="samples a step")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of torch")
    parser.add_argument("--folder", type=Path, help="where to save; by default a temporary folder")
    parser.add_argument("--print-only", action="store_true", help="leave results/ as it is")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    machine = {
        "processor": platform.processor() or platform.machine(),
        "cores": psutil.cpu_count(),
        "torch": str(torch.__version__),
        "threads": options.threads,
        "load_before": os.getloadavg()[0],
    }
    folder = Path(tempfile.mkdtemp(dir=options.folder))
    try:
        rows = [measure(width, options.batch, options.every, options.rounds, folder) for width in options.widths]
    finally:
        shutil.rmtree(folder)
    machine["load_after"] = os.getloadavg()[0]
    text = report(rows, machine)
    print(text)
    if not options.print_only:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "checkpoint.md").write_text(text, encoding="utf-8")
        (RESULTS / "checkpoint.json").write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
