"""SIGKILL to a random one of three ranks at a random moment, again and again: is every sample in the weights once an epoch, how
long is it until the next batch, does anything stay behind? With `--policy` only one policy. Rank 0 is killed as often as the
others.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import bench
import psutil
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

import flodl as fl

SAMPLES, EPOCHS, RANKS = 1500, 6, 3
POLICIES = ("cadence", "async", "sync")


class Numbered(Dataset[tuple[Tensor, Tensor, int]]):
    """A sample is its numbers and which one it is."""

    def __init__(self) -> None:
        self.x = torch.randn(SAMPLES, 5, generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, int]:
        return self.x[index], self.x[index].sum().sin(), index


def train(out: Path, policy: str) -> None:
    """A rank: a line for each batch with the moment, its window and its samples."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 32), nn.Tanh(), nn.Linear(32, 1))
    trainer = fl.Trainer.setup(
        model, torch.optim.SGD(model.parameters(), lr=0.05), Numbered(), batch_size=8, devices=f"cpu:{RANKS}", policy=policy,
        folder=str(out / "runs"), simulate_speed=[1.0, 0.7, 0.5], step="eager", quiet=True,
    )  # fmt: skip
    with trainer, open(out / f"seen.{os.environ['RANK']}", "w") as seen:
        for _ in trainer.epochs(EPOCHS):
            for x, y, numbers in trainer.batches():
                leg = getattr(trainer._fit.column, "_leg", None)
                window = leg.window.number if leg else trainer.global_step
                print(time.time(), os.getpid(), window, *numbers.tolist(), file=seen, flush=True)
                trainer.step(F.mse_loss(trainer.model(x).squeeze(1), y))
                time.sleep(0.004)


def batches(file: Path) -> list[tuple[float, int, int, list[int]]]:
    rows = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
    return [(float(r[0]), int(r[1]), int(r[2]), [int(n) for n in r[3:]]) for r in rows]


def trial(number: int, policy: str, chance: random.Random) -> dict[str, Any]:
    """One training in which one rank is killed."""
    with tempfile.TemporaryDirectory(prefix="flodl-kills-") as folder:
        out, victim = Path(folder), number % RANKS
        command = [sys.executable, "-W", "ignore", __file__, "--rank", folder, "--policy", policy]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
        )
        while not (rows := batches(out / f"seen.{victim}")):
            time.sleep(0.02)
            if process.poll() is not None:
                raise SystemExit(process.communicate()[0])
        time.sleep(chance.uniform(0.0, 1.5))
        killed = time.time()
        os.kill(rows[0][1], signal.SIGKILL)
        output, _ = process.communicate(timeout=180)
        seen = {rank: batches(out / f"seen.{rank}") for rank in range(RANKS)}
        after = [row[0] for rank, rows in seen.items() if rank != victim for row in rows]
        gaps = []
        for rank, rows in seen.items():
            if rank != victim:
                moments = [row[0] for row in rows]
                around = [b - a for a, b in itertools.pairwise(moments) if a <= killed + 1.0 and b >= killed]
                gaps.append(max(around, default=0.0))
        counts = Counter(n for rows in seen.values() for row in rows for n in row[3])
        more = counts - Counter(dict.fromkeys(range(SAMPLES), EPOCHS))
        windows = sorted({row[2] for row in seen[victim]})[-2:]
        lost = Counter(n for row in seen[victim] if row[2] in windows for n in row[3])
        left = [p.pid for p in psutil.process_iter(["cmdline"]) if folder in " ".join(p.info["cmdline"] or [])]
        return {
            "policy": policy,
            "victim": victim,
            "code": process.returncode,
            "once": len(counts) == SAMPLES and min(counts.values()) >= EPOCHS and more <= lost,
            "next_batch_s": max(gaps),
            "over": killed > max(after),
            "left": len(left),
            "output": output if process.returncode else "",
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    bench.add_options(parser)
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    parser.add_argument("--policy", choices=POLICIES)
    parser.add_argument("--kills", type=int, help="how many (default 9, publish 50)")
    parser.add_argument("--seed", type=int, default=2026)
    options = parser.parse_args()
    if options.rank:
        train(Path(options.rank), options.policy)
        return
    publish = options.form == "publish" and not options.quick
    chance, kills = random.Random(options.seed), options.kills or (50 if publish else 9)
    policies = [options.policy] if options.policy else list(POLICIES)
    trials = []
    for number in range(kills):
        trials.append(trial(number, policies[number // RANKS % len(policies)], chance))
        done = trials[-1]
        print(
            f"[{number + 1}/{kills}] {json.dumps({k: v for k, v in done.items() if k != 'output'})}",
            file=sys.stderr,
            flush=True,
        )
        if done["code"]:
            print(done["output"], file=sys.stderr)
    hit = [t for t in trials if not t["over"]]
    environment = bench.environment()
    out = bench.heading("Killed ranks", f"./fdl bench ddp-kills {options.form}", environment, kills)
    out += [
        "| policy | kills | trained on | each sample once | next batch: median | longest | left behind |",
        "|---" * 7 + "|",
    ]
    for policy in policies:
        mine = [t for t in hit if t["policy"] == policy]
        if mine:
            gaps = [t["next_batch_s"] for t in mine]
            well, once = sum(t["code"] == 0 for t in mine), sum(t["once"] for t in mine)
            left = sum(t["left"] for t in mine)
            out.append(
                f"| {policy} | {len(mine)} | {well} | {once} | {statistics.median(gaps):.2f} s | {max(gaps):.2f} s | {left} |"
            )
    print(text := "\n".join([*out, ""]))
    if publish:
        results = {"environment": environment, "seed": options.seed, "trials": trials}
        bench.RESULTS.mkdir(exist_ok=True)
        (bench.RESULTS / "ddp_kills.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        (bench.RESULTS / "ddp_kills.md").write_text(text, encoding="utf-8")
    if any(t["code"] or not t["once"] or t["left"] for t in trials):
        sys.exit("some of them were not survived as they should be")


if __name__ == "__main__":
    main()
