"""What a flow costs: forward against the same model by hand, compilation, building, and what `map.batched` gains.

Timing is of one thread's processor time, in pairs that take turns, so that other work on the machine disturbs both sides
alike and waiting for a processor does not count. Results go to `results/graph.json` and `results/graph.md`.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from graph_models import PAIRS
from torch import nn

import flodl as fl

RESULTS = Path(__file__).parent / "results"
Row = dict[str, Any]


def thread_s(call: Callable[[], object], times: int) -> float:
    """Seconds of this thread's processor time per call."""
    start = time.thread_time()
    for _ in range(times):
        call()
    return (time.thread_time() - start) / times


def in_turns(a: Callable[[], object], b: Callable[[], object], rounds: int, segment_s: float = 0.05) -> Row:
    """Time `a` and `b` in turns: medians in ms, the ratio of medians, and the middle 60% of the ratios of the rounds."""
    for _ in range(3):
        a(), b()
    times = max(1, int(segment_s / max(thread_s(a, 3), 1e-9)))
    pairs = []
    for number in range(rounds):
        first, second = (a, b) if number % 2 else (b, a)
        seconds = {id(first): thread_s(first, times)}
        seconds[id(second)] = thread_s(second, times)
        pairs.append((seconds[id(a)], seconds[id(b)]))
    a_s, b_s = statistics.median(p[0] for p in pairs), statistics.median(p[1] for p in pairs)
    ratios = sorted(x / y for x, y in pairs)
    fifth = len(ratios) // 5
    return {"a_ms": 1e3 * a_s, "b_ms": 1e3 * b_s, "ratio": a_s / b_s, "low": ratios[fifth], "high": ratios[-1 - fifth]}


def forwards(rounds: int) -> list[Row]:
    """Each of the ten models as a flow with unobserved tags (a) against by hand (b), in training mode with gradients."""
    rows = []
    for name, make in PAIRS.items():
        torch.manual_seed(0)
        by_hand, flow, x = make()
        by_hand.eval(), flow.eval()
        torch.testing.assert_close(flow(x), by_hand(x))
        by_hand.train(), flow.train()
        rows.append({"model": name, **in_turns(lambda f=flow, x=x: f(x), lambda m=by_hand, x=x: m(x), rounds)})
    return rows


def noise(rounds: int) -> Row:
    """One model against itself: what a ratio can be by chance on this machine."""
    by_hand, _, x = PAIRS["residual_tower"]()
    return in_turns(lambda: by_hand(x), lambda: by_hand(x), rounds)


def small_forward(rounds: int) -> Row:
    """The worst case: ten layers of 8 features, where nearly all is the time of Python."""
    layers = [nn.Linear(8, 8) for _ in range(10)]
    flow = fl.flow(layers[0])
    for i, layer in enumerate(layers[1:]):
        flow.through(layer).tag(f"t{i}")
    built, x = flow.build(), torch.randn(1, 8)
    names = [f"l{i}" for i in range(10)]
    source = "\n    x = ".join(["def forward(self, x):", *(f"self.{n}(x)" for n in names)]) + "\n    return x"
    scope: dict[str, Any] = {}
    exec(source, scope)
    by_hand = type("ByHand", (nn.Module,), {"forward": scope["forward"]})()
    for name, layer in zip(names, layers, strict=True):
        by_hand.add_module(name, layer)
    return in_turns(lambda: built(x), lambda: by_hand(x), rounds)


def linear() -> nn.Module:
    return nn.Linear(8, 8)


def compiled() -> list[Row]:
    """Which constructs compile in one graph, and the breaks of the others."""
    body = fl.flow(linear()).through(torch.tanh).tag("q")
    start = fl.flow(linear()).tag("h")
    halt = fl.ThresholdHalt(2.5)
    flows = {
        "chain, also, fork, using": start.copy()
        .also(linear())
        .fork(linear())
        .tag("f")
        .through(lambda x, f: x * f)
        .using("f"),
        "split, merge": start.copy().split([linear(), linear()]).tag_group("g").merge("mean"),
        "state": start.copy().through(fl.StateAdd()).using("m").through(torch.tanh).tag("m"),
        "loop for_n": start.copy().loop_body(body).for_n(4),
        "gate": start.copy().gate(fl.SoftmaxRouter(8, 4), [linear() for _ in range(4)]),
        "map each": start.copy().map(linear()).each(),
        "map slices batched": start.copy().map(nn.Linear(4, 4)).slices(2).batched(),
        "nested, labelled": start.copy().through(fl.flow(linear()).label("inner")),
        "switch, fixed": start.copy().switch(fl.FixedSelector(1), [linear(), linear()]),
        "switch, argmax": start.copy().switch(fl.ArgmaxSelector(8, 2), [linear(), linear()]),
        "switch per_sample": start.copy().switch(fl.ArgmaxSelector(8, 2), [linear(), linear()], per_sample=True),
        "while_cond": start.copy().loop_body(linear()).while_cond(halt, 4),
        "until_cond": start.copy().loop_body(linear()).until_cond(halt, 4),
        "until_cond per_sample": start.copy().loop_body(linear()).until_cond(halt, 4, per_sample=True),
        "until_cond LearnedHalt": start.copy().loop_body(linear()).until_cond(fl.LearnedHalt(8), 4),
    }
    rows = []
    for name, flow in flows.items():
        model, x = flow.build(), torch.randn(6, 8)
        torch._dynamo.reset()
        try:
            torch.compile(model, fullgraph=True, backend="aot_eager")(x)
            rows.append({"flow": name, "fullgraph": True, "breaks": 0})
        except torch._dynamo.exc.Unsupported:
            torch._dynamo.reset()
            torch.testing.assert_close(torch.compile(model, backend="aot_eager")(x), model(x))
            torch._dynamo.reset()
            found = torch._dynamo.explain(model)(x)
            rows.append({"flow": name, "fullgraph": False, "breaks": found.graph_break_count})
    observed = start.copy().through(nn.Tanh()).tag("out").build()
    observed.collect("h", "out")
    torch._dynamo.reset()
    torch.compile(observed, fullgraph=True, backend="aot_eager")(torch.randn(6, 8))
    rows.append({"flow": "observed tags", "fullgraph": True, "breaks": 0})
    return rows


def builds() -> list[Row]:
    """Seconds of `build()` for long flows, median of three."""
    rows = []
    for steps in (1000, 5000):
        seconds = []
        for _ in range(3):
            flow = fl.flow(nn.Linear(4, 4))
            for i in range(steps - 1):
                flow.through(nn.Linear(4, 4) if i % 2 else nn.ReLU()).tag(f"t{i}")
            start = time.perf_counter()
            model = flow.build()
            seconds.append(time.perf_counter() - start)
        model(torch.randn(2, 4))
        rows.append({"steps": steps, "build_s": statistics.median(seconds)})
    return rows


def map_gain(rounds: int) -> list[Row]:
    """`map(body).each()` one by one (a) against batched (b)."""
    rows = []
    for size in (16, 64, 256):
        body = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64))
        one, all_ = (
            f.build()
            for f in (fl.flow(nn.Identity()).map(body).each(), fl.flow(nn.Identity()).map(body).each().batched())
        )
        x = torch.randn(size, 64)
        torch.testing.assert_close(one(x), all_(x))
        rows.append({"rows": size, **in_turns(lambda f=one, x=x: f(x), lambda f=all_, x=x: f(x), max(5, rounds // 4))})
    return rows


def markdown(results: dict[str, Any]) -> str:
    """The results as tables."""
    machine = f"torch {results['torch']}, Python {results['python']}, one thread, {results['rounds']} rounds in turns"
    out = [
        "# What a flow costs",
        "",
        f"{machine}; written by `./fdl bench graph`.",
        "",
        "| model | flow ms | by hand ms | ratio | middle 60% |",
        "|---|---|---|---|---|",
    ]
    compared = [(r["model"], r) for r in results["forward"]]
    compared += [("ten tiny layers", results["small"]), ("by hand, against itself", results["noise"])]
    for name, r in compared:
        out.append(
            f"| {name} | {r['a_ms']:.3f} | {r['b_ms']:.3f} | {r['ratio']:.3f} | {r['low']:.3f} to {r['high']:.3f} |"
        )
    out += [
        "",
        "| torch.compile of a flow with | one graph | breaks |",
        "|---|---|---|",
        *(f"| {r['flow']} | {'yes' if r['fullgraph'] else 'no'} | {r['breaks']} |" for r in results["compile"]),
        "",
        "| steps | build s |",
        "|---|---|",
        *(f"| {r['steps']:,} | {r['build_s']:.3f} |" for r in results["build"]),
        "",
        "| map over rows | one by one ms | batched ms | gain |",
        "|---|---|---|---|",
        *(f"| {r['rows']} | {r['a_ms']:.3f} | {r['b_ms']:.3f} | {r['ratio']:.1f}x |" for r in results["map"]),
    ]
    return "\n".join(out) + "\n"


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("--rounds", type=int, default=60, help="pairs of measurements for each model (default 60)")
    return made


def main() -> None:
    options = parser().parse_args()
    torch.set_num_threads(1)
    results = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "rounds": options.rounds,
        "forward": forwards(options.rounds),
        "small": small_forward(options.rounds),
        "noise": noise(options.rounds),
        "build": builds(),
        "map": map_gain(options.rounds),
        "compile": compiled(),
    }
    text = markdown(results)
    print(text)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "graph.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    (RESULTS / "graph.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
