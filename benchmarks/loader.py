"""How fast batches come: the loader against torch's `DataLoader` on the same data, with the same workers.

Both read every batch once, in turns and in alternating order, so that other work on the machine disturbs both alike; the
ratio is the median of the rounds' ratios. `overlap` is whole training epochs of slow data with a step, against fetching
in line. Results go to `results/loader.json` and `results/loader.md`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from flodl.data import Loader

RESULTS = Path(__file__).parent / "results"
Row = dict[str, Any]
BATCH = 64


class SlowPython(Dataset[Any]):
    """0.2 ms of Python for a sample of 12 KB: decoding, tokenizing, augmenting."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Any:
        total = 0
        for i in range(4000):
            total += i * index
        return torch.full((3, 32, 32), float(total % 7)), index


class Mapped(Dataset[Any]):
    """Rows of 12 KB of a memory-mapped file, sample by sample."""

    def __init__(self, path: str, samples: int) -> None:
        self.rows = np.memmap(path, dtype=np.float32, mode="r", shape=(samples, 3 * 32 * 32))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return torch.from_numpy(self.rows[index].copy()), index


def processor_s() -> float:
    """Processor seconds of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def both(batches: Iterable[Any]) -> tuple[float, float]:
    """Wall and processor seconds to read all batches."""
    start = processor_s()
    return read(batches), processor_s() - start


def read(batches: Iterable[Any], after: Callable[[], None] = lambda: None) -> float:
    """Seconds to read all batches, once each."""
    start = time.perf_counter()
    for x, _ in batches:
        x.sum()
        after()
    return time.perf_counter() - start


def in_turns(name: str, workers: str, ours: Callable[[int], Iterable[Any]], theirs: Iterable[Any], rounds: int) -> Row:
    """One row: medians in ms an epoch, the median ratios, and the middle 60% of the rounds' ratios."""
    read(ours(0)), read(theirs)
    pairs = []
    for number in range(rounds):
        measures = [lambda n=number: both(ours(n)), lambda: both(theirs)]
        pair = [measure() for measure in measures] if number % 2 else [m() for m in measures[::-1]][::-1]
        pairs.append(pair)
    row: Row = {"data": name, "workers": workers}
    for what, at in (("wall", 0), ("processor", 1)):
        ratios = sorted(a[at] / b[at] for a, b in pairs)
        fifth = len(ratios) // 5
        row[what] = {
            "flodl_ms": 1e3 * statistics.median(a[at] for a, _ in pairs),
            "torch_ms": 1e3 * statistics.median(b[at] for _, b in pairs),
            "ratio": statistics.median(ratios),
            "low": ratios[fifth],
            "high": ratios[-1 - fifth],
        }
    print(line(row), flush=True)
    return row


def compared(rounds: int) -> list[Row]:
    """Resident tensors, slow Python, a memory-mapped file; without workers and with."""
    rows = []
    x, y = torch.randn(20_000, 784), torch.arange(20_000)
    resident = Loader((x, y), BATCH)
    rows.append(
        in_turns(
            "resident tensors, 20,000 x 784",
            "0",
            resident.epoch,
            DataLoader(TensorDataset(x, y), BATCH, shuffle=True),
            rounds,
        )
    )
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "rows.bin")
        np.random.default_rng(0).random((8000, 3 * 32 * 32), dtype=np.float32).tofile(path)
        mapped = Mapped(path, 8000)
        arrays = (mapped.rows, torch.arange(8000))
        rows.append(
            in_turns(
                "memory map, as a tensor",
                "0",
                Loader(arrays, BATCH).epoch,
                DataLoader(mapped, BATCH, shuffle=True),
                rounds,
            )
        )
        slow = SlowPython(1500)
        for name, data in (("memory map, by sample", mapped), ("slow Python", slow)):
            for workers in (0, 1, 2):
                ours = Loader(data, BATCH, workers=workers, prefetch=None if workers else 0)
                theirs = DataLoader(data, BATCH, shuffle=True, num_workers=workers)
                rows.append(in_turns(name, str(workers), ours.epoch, theirs, rounds))
            rows.append(
                in_turns(name, "chosen / 0", Loader(data, BATCH).epoch, DataLoader(data, BATCH, shuffle=True), rounds)
            )
    return rows


def overlap(rounds: int) -> list[Row]:
    """Epochs with a step: what is chosen against fetching in line."""
    rows = []
    cases = {
        "slow Python (holds the GIL)": (SlowPython(8000), 0.0),
        "waiting, 10 ms a batch (frees the GIL)": (SlowPython(0), 0.010),
    }
    for name, (data, wait) in cases.items():
        source: Any = data if not wait else _Waiting(wait / BATCH)
        step_s = wait or 0.020
        a_ms, b_ms, note = [], [], None
        chosen = Loader(source, BATCH)
        inline = Loader(source, BATCH, workers=0, prefetch=0)
        for number in range(rounds):
            for loader, times in ((chosen, a_ms), (inline, b_ms)) if number % 2 else ((inline, b_ms), (chosen, a_ms)):
                times.append(1e3 * read(loader.epoch(number), lambda s=step_s: time.sleep(s)))
            note = chosen.note
        ratios = sorted(a / b for a, b in zip(a_ms, b_ms, strict=True))
        fifth = len(ratios) // 5
        row = {
            "data": name,
            "note": note or "in line",
            "step_ms": 1e3 * step_s,
            "chosen_ms": statistics.median(a_ms),
            "inline_ms": statistics.median(b_ms),
            "ratio": statistics.median(ratios),
            "low": ratios[fifth],
            "high": ratios[-1 - fifth],
        }
        print(row, flush=True)
        rows.append(row)
    return rows


class _Waiting(Dataset[Any]):
    """Samples that come over a network."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return 1500

    def __getitem__(self, index: int) -> Any:
        return torch.zeros(3), index

    def __getitems__(self, indices: list[int]) -> list[Any]:
        time.sleep(self.seconds * len(indices))
        return [self[i] for i in indices]


def line(r: Row) -> str:
    parts = [r["data"], r["workers"]]
    for m in (r["wall"], r["processor"]):
        parts += [
            f"{m['flodl_ms']:.1f}",
            f"{m['torch_ms']:.1f}",
            f"{m['ratio']:.2f} ({m['low']:.2f} to {m['high']:.2f})",
        ]
    return "| " + " | ".join(parts) + " |"


def markdown(results: Row) -> str:
    """The results as tables."""
    machine = (
        f"torch {results['torch']}, Python {results['python']}, {results['processors']} processors, one thread; load "
        f"{results['load_before']:.1f} before and {results['load_after']:.1f} after; {results['rounds']} rounds in turns"
    )
    return "\n".join(
        [
            "# How fast batches come",
            "",
            f"{machine}; written by `./fdl bench loader`.",
            "",
            f"An epoch in batches of {BATCH}, workers started in it, against torch's `DataLoader` with the same number.",
            "Wall time, which other work on the machine disturbs, and processor time of all processes together.",
            "",
            "| data | workers | flodl ms | torch ms | ratio (middle 60%) | flodl cpu ms | torch cpu ms | ratio (middle 60%) |",
            "|---|---|---|---|---|---|---|---|",
            *map(line, results["compared"]),
            "",
            "An epoch with a step that sleeps, what is chosen against fetching in line:",
            "",
            "| data | step ms | chosen ms | in line ms | ratio | middle 60% | what was chosen |",
            "|---|---|---|---|---|---|---|",
            *(
                f"| {r['data']} | {r['step_ms']:.1f} | {r['chosen_ms']:.0f} | {r['inline_ms']:.0f} | {r['ratio']:.2f} "
                f"| {r['low']:.2f} to {r['high']:.2f} | {r['note']} |"
                for r in results["overlap"]
            ),
            "",
        ]
    )


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("--rounds", type=int, default=10, help="pairs of epochs for each row (default 10)")
    return made


def main() -> None:
    options = parser().parse_args()
    torch.set_num_threads(1)
    before = psutil.getloadavg()[0]
    rows = compared(options.rounds)
    results = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processors": os.cpu_count(),
        "rounds": options.rounds,
        "load_before": before,
        "compared": rows,
        "overlap": overlap(max(3, options.rounds // 2)),
        "load_after": psutil.getloadavg()[0],
    }
    text = markdown(results)
    print(text)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "loader.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    (RESULTS / "loader.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
