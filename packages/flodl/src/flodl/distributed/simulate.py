"""What a training on devices that are not here would reach: discrete events, and the very planner that trains."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from flodl.distributed.planner import Planner, Report, Window
from flodl.errors import ConfigError, nearest

__all__ = ["NETWORKS", "Prediction", "parse_fleet", "simulate"]

NETWORKS = {  # latency of a message in seconds, bytes a second
    "loopback": (2e-5, 2e9),
    "1GbE": (1e-4, 1.1e8),
    "10GbE": (6e-5, 1.1e9),
    "25GbE": (4e-5, 2.8e9),
    "100GbE": (3e-5, 1.1e10),
    "PCIe": (1e-5, 1.2e10),
    "NVLink": (5e-6, 1.5e11),
}
SPEEDS = {  # relative to a 3090, training in float32 and TF32: published benchmarks, rounded
    "cpu": 0.02, "1060": 0.12, "1080": 0.25, "1080ti": 0.33, "2060": 0.35, "2080": 0.5, "2080ti": 0.6, "3060": 0.4,
    "3070": 0.6, "3080": 0.85, "3090": 1.0, "4060": 0.5, "4070": 0.8, "4080": 1.3, "4090": 1.8, "5060ti": 0.75, "5070": 1.0,
    "5080": 1.5, "5090": 2.4, "t4": 0.25, "v100": 0.8, "a10": 0.7, "l4": 0.6, "a100": 1.6, "h100": 3.0, "h200": 3.2,
}  # fmt: skip
Policy = Literal["lockstep", "sync", "cadence", "async", "hierarchical"]
_Floats = np.ndarray[Any, np.dtype[Any]]
POLICIES: tuple[Policy, ...] = ("lockstep", "sync", "cadence", "async", "hierarchical")


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """efficiency: samples a second, as a share of the devices' summed speeds. seconds, samples: of the simulated time.

    anchor: batches of the slowest device between two meetings at the end; window_s: how long that takes; comm_s: of one
    exchange; meetings: how many there were; lost: ranks.
    """

    policy: str
    ranks: int
    efficiency: float
    seconds: float
    samples: int
    anchor: int
    window_s: float
    comm_s: float
    meetings: int
    lost: int


def parse_fleet(text: str) -> list[float]:
    """Relative speeds from "4x3090, 2x1060" or "2x1.0, 0.4". Raises ConfigError with the nearest known device."""
    speeds: list[float] = []
    for part in text.split(","):
        matched = re.fullmatch(r"\s*(?:(\d+)\s*[x*]\s*)?((?:[rg]tx\s*)?[\w.]+(?:\s*ti)?)\s*", part, re.IGNORECASE)
        if not matched:
            raise ConfigError(f'devices are such as "4x3090, 2x1060" or "2x1.0, 0.4", not {part.strip()!r}')
        name = matched[2].lower().replace(" ", "").replace("rtx", "").replace("gtx", "")
        if name in SPEEDS:
            speed = SPEEDS[name]
        else:
            try:
                speed = float(name)
            except ValueError:
                raise ConfigError(
                    f"the speed of {matched[2]!r} is not known: give a number.{nearest(name, SPEEDS)}"
                ) from None
            if not 0 < speed <= 20:
                raise ConfigError(
                    f"{matched[2]} is neither a known device nor a relative speed of at most 20.{nearest(name, SPEEDS)}"
                )
        speeds += [speed] * int(matched[1] or 1)
    return speeds


def exchange_seconds(ranks: int, numbers: float, network: str | tuple[float, float], bytes_each: int = 4) -> float:
    """One sum over ranks of so many numbers, by a ring or a tree, whichever is faster (Thakur et al. 2005)."""
    if ranks < 2:
        return 0.0
    latency, rate = NETWORKS[network] if isinstance(network, str) else network
    size = numbers * bytes_each
    ring = 2 * (ranks - 1) * latency + 2 * (ranks - 1) / ranks * size / rate
    tree = 2 * math.ceil(math.log2(ranks)) * (latency + size / rate / 2)
    return min(ring, tree)


_HOT_MS, _STALL_MS = 30_000.0, 1000.0

_ABOVE_0: tuple[Callable[[float], bool], str] = (lambda x: 0 < x < math.inf, "a number above 0")
_FROM_0: tuple[Callable[[float], bool], str] = (lambda x: 0 <= x < math.inf, "a number of at least 0")
_CHANCE: tuple[Callable[[float], bool], str] = (lambda x: 0 <= x <= 1, "between 0 and 1")
_COUNT: tuple[Callable[[float], bool], str] = (lambda x: 1 <= x < math.inf, "at least 1")
_NEEDS = {
    "step_ms": _ABOVE_0, "parameters": _ABOVE_0, "jitter": _FROM_0, "recovery_s": _FROM_0, "failures": _FROM_0, "seed": _FROM_0,
    "stall": _CHANCE, "throttle": _CHANCE, "batch_size": _COUNT, "meetings": _COUNT, "max_anchor": _COUNT, "per_host": _COUNT,
    "overhead_target": (lambda x: 0 < x < 1, "above 0 and below 1"),
}  # fmt: skip


def _check(speeds: Sequence[float], **given: float) -> None:
    """Raises ConfigError for the first setting that cannot be simulated."""
    for name, value in given.items():
        possible, needs = _NEEDS[name]
        if not possible(value):
            raise ConfigError(f"{name} is {value}; it must be {needs}")
    if not speeds or not all(0 < speed < math.inf for speed in speeds):
        raise ConfigError("a simulation needs at least one device, each of a speed above 0")
    if given["failures"] >= len(speeds):
        raise ConfigError(f"failures is {given['failures']}; of {len(speeds)} devices at least one has to be left")


class _World:
    """Devices whose batches take a little more or less each time, that stall now and then and throttle when hot."""

    def __init__(self, ms: Sequence[float], seed: int, jitter: float, stall: float, throttle: float) -> None:
        self.ms = np.asarray(ms, dtype=float)
        self._rng = np.random.default_rng(seed)
        self._jitter, self._stall, self._throttle = jitter, stall, throttle
        self._hot_until = np.zeros(len(ms))

    def run(self, batches: _Floats, start: _Floats, limit_ms: float) -> tuple[_Floats, _Floats]:
        """Milliseconds and batches done of each rank that is given `batches` at `start`; late ones stop at the limit."""
        rng, n = self._rng, np.maximum(batches, 1e-9)
        ms = self.ms * np.maximum(0.5, 1 + self._jitter / np.sqrt(n) * rng.normal(size=len(n)))
        base, when = batches * ms, rng.random(len(n))
        begins = (rng.random(len(n)) < self._throttle * batches) & (self._hot_until < start)
        slower = np.where(self._hot_until > start, np.minimum((self._hot_until - start) / 2, base), 0.0)
        slower = np.where(begins, np.minimum(_HOT_MS / 2, base * (1 - when)), slower)
        self._hot_until = np.where(begins, start + when * base + _HOT_MS, self._hot_until)
        stalls = rng.poisson(self._stall * batches)
        lost = slower + np.where(stalls > 0, rng.exponential(_STALL_MS, len(n)) * stalls, 0.0)
        taken, done = base + lost, batches.astype(float)
        if limit_ms:
            late = (taken > limit_ms + 0.5 * ms) & (batches > 1)
            fitting = np.clip(np.floor((limit_ms - lost) / ms), 1, np.maximum(batches, 1))
            done = np.where(late, fitting, done)
            taken = np.where(late, done * ms + lost, taken)
        return taken, done

    def drop(self, rank: int) -> None:
        self.ms = np.delete(self.ms, rank)
        self._hot_until = np.delete(self._hot_until, rank)


def simulate(
    devices: str | Sequence[float],
    *,
    step_ms: float,
    parameters: float,
    network: str = "1GbE",
    policy: Policy = "cadence",
    batch_size: int = 32,
    meetings: int = 120,
    overhead_target: float = 0.05,
    max_anchor: int = 64,
    jitter: float = 0.1,
    stall: float = 1e-4,
    throttle: float = 2e-5,
    failures: int = 0,
    recovery_s: float = 0.5,
    per_host: int = 8,
    within_host: str = "PCIe",
    seed: int = 0,
) -> Prediction:
    """Predict the efficiency of a policy on `devices` ("4x3090, 2x1060", or relative speeds).

    step_ms: of a batch on a device of speed 1. parameters: how many numbers are exchanged, 4 bytes each. jitter: relative
    spread of a batch's time; stall: the chance of a pause (1 s on average) in a batch; throttle: that of 30 s at half speed.
    failures: ranks that are lost on the way, each costing `recovery_s` seconds. "lockstep" is DDP with equal parts, "sync"
    parts in proportion to speed; "hierarchical" averages among the `per_host` ranks of a host at each meeting, and over
    hosts at every fourth.

    Raises ConfigError for devices, a network or a policy that is not known, and for numbers that cannot be.
    """
    speeds = parse_fleet(devices) if isinstance(devices, str) else list(map(float, devices))
    if policy not in POLICIES:
        raise ConfigError(f"there is no policy {policy!r}.{nearest(policy, POLICIES)}")
    for name in (network, within_host):
        if name not in NETWORKS:
            raise ConfigError(f"there is no network {name!r}.{nearest(name, NETWORKS)}")
    _check(
        speeds, step_ms=step_ms, parameters=parameters, batch_size=batch_size, meetings=meetings, max_anchor=max_anchor,
        overhead_target=overhead_target, jitter=jitter, stall=stall, throttle=throttle, failures=failures,
        recovery_s=recovery_s, per_host=per_host, seed=seed,
    )  # fmt: skip
    world = _World([step_ms / speed for speed in speeds], seed, jitter, stall, throttle)
    whole = sum(1.0 / ms for ms in world.ms)  # batches a millisecond
    rng = np.random.default_rng(seed + 1)
    losses = Counter(rng.integers(meetings // 4, meetings, failures).tolist())  # by meeting; several may be lost in one

    def comm() -> float:
        return 1e3 * exchange_seconds(len(world.ms), parameters, network)

    planner = Planner(
        ranks=len(speeds), batch_size=batch_size, epoch_samples=None, max_anchor=max_anchor, overhead_target=overhead_target,
        divergence_threshold=math.inf, overlapped=policy == "async",
    )  # fmt: skip
    now, work, flying_until, capacity, at = np.zeros(len(speeds)), 0.0, 0.0, 0.0, 0.0
    waiting: list[tuple[Window, list[Report]]] = []
    anchor, lost = 1, 0
    for number in range(meetings * (20 if policy in ("lockstep", "sync") else 1)):
        if policy in ("lockstep", "sync"):
            ranks = len(world.ms)
            share = np.ones(ranks) if policy == "lockstep" else ranks * (1 / world.ms) / (1 / world.ms).sum()
            taken, _ = world.run(np.ones(ranks), now, 0.0)
            shown = 0.3 if policy == "lockstep" else 1.0  # DDP hides the rest behind backward; ours begins after it
            now = np.full(ranks, (now + taken * share).max() + shown * comm())
            work += ranks
        else:
            window = planner.plan()
            batches = np.array([share.batches for share in window.shares])
            taken, done = world.run(batches, now, 1.1 * window.target_ms)
            work += float(done.sum())
            arrived, cost = now + taken, comm()
            if policy == "hierarchical":
                cost = 1e3 * exchange_seconds(min(per_host, len(world.ms)), parameters, within_host)
                hosts = math.ceil(len(world.ms) / per_host)
                cost += 1e3 * exchange_seconds(hosts, parameters, network) if number % 4 == 3 else 0.0
            if policy == "async":
                launched = np.maximum(arrived, flying_until)
                over = launched.max() + cost
                blocked = launched - arrived
                collective = over - launched
                now, flying_until = launched, over
            else:
                over = arrived.max() + cost
                blocked = collective = over - arrived
                now = np.full(len(world.ms), over)
            reports = [
                Report(samples=0, batches=float(d), compute_ms=float(t), collective_ms=float(c), blocked_ms=float(b))
                for d, t, c, b in zip(done, taken, collective, blocked, strict=True)
            ]
            waiting.append((window, reports))
            if policy != "async" or len(waiting) > 1:  # what a travelling average tells is known one window later
                planner.observe(*waiting.pop(0))
            anchor = planner.anchor
        for _ in range(losses[number]):
            gone = int(rng.integers(len(world.ms)))
            capacity += whole * (float(now.max()) - at)
            at = float(now.max())
            world.drop(gone)
            now = np.delete(now, gone) + 1e3 * recovery_s
            whole = float((1.0 / world.ms).sum())
            lost += 1
            if policy not in ("lockstep", "sync"):
                while waiting:
                    planner.observe(*waiting.pop(0))
                planner.reform([rank for rank in range(planner.ranks) if rank != gone])
    ended = float(now.max())
    capacity += whole * (ended - at)
    return Prediction(
        policy=policy,
        ranks=len(speeds),
        efficiency=float(work / capacity),
        seconds=ended / 1e3,
        samples=round(work * batch_size),
        anchor=anchor,
        window_s=planner.window_ms / 1e3,
        comm_s=comm() / 1e3,
        meetings=meetings,
        lost=lost,
    )


def table(predictions: Sequence[Prediction]) -> str:
    """For people."""
    lines = [f"{'policy':<14}{'efficiency':>11}{'samples/s':>12}{'anchor':>8}{'window':>10}{'exchange':>11}"]
    for p in predictions:
        rate = p.samples / p.seconds
        window = f"{p.window_s:.2f} s" if p.window_s else "-"
        anchor = str(p.anchor) if p.window_s else "-"
        exchange = f"{1e3 * p.comm_s:.1f} ms"
        lines.append(f"{p.policy:<14}{p.efficiency:>11.3f}{rate:>12,.0f}{anchor:>8}{window:>10}{exchange:>11}")
    return "\n".join(lines)


def plain(predictions: Sequence[Prediction]) -> list[dict[str, Any]]:
    """For scripts."""
    return [asdict(p) for p in predictions]
