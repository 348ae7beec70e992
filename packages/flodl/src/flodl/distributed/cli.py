"""What `fdl simulate` does: `main(words)`."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence

from flodl.distributed.simulate import POLICIES, plain, simulate, table
from flodl.errors import ConfigError

__all__ = ["main"]

_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9}


def main(words: Sequence[str]) -> int:
    """One call; its exit code."""
    options = _parser().parse_args(words)
    try:
        predictions = [
            simulate(
                options.devices,
                step_ms=options.step_ms,
                parameters=_number(options.parameters),
                network=options.network,
                policy=policy,
                batch_size=options.batch_size,
                overhead_target=options.overhead_target,
                max_anchor=options.max_anchor,
                jitter=options.jitter,
                stall=options.stall,
                throttle=options.throttle,
                failures=options.failures,
                per_host=options.per_host,
                within_host=options.within_host,
                seed=options.seed,
            )
            for policy in options.policy or POLICIES
        ]
    except ConfigError as error:
        print(f"fdl: {error}", file=sys.stderr)
        return 2
    print(json.dumps(plain(predictions), indent=1) if options.json else table(predictions))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fdl simulate", allow_abbrev=False)
    for name in ("--devices", "--parameters", "--network"):
        parser.add_argument(name, required=True)
    parser.add_argument("--step-ms", type=float, required=True)
    parser.add_argument("--policy", action="append")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--overhead-target", type=float, default=0.05)
    parser.add_argument("--max-anchor", type=int, default=64)
    parser.add_argument("--jitter", type=float, default=0.1)
    parser.add_argument("--stall", type=float, default=1e-4)
    parser.add_argument("--throttle", type=float, default=2e-5)
    parser.add_argument("--per-host", type=int, default=8)
    parser.add_argument("--within-host", default="PCIe")
    parser.add_argument("--failures", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    return parser


def _number(text: str) -> float:
    matched = re.fullmatch(r"([\d.]+)\s*([kmbg]?)", text.strip().lower())
    try:
        return float(matched[1]) * _UNITS[matched[2]] if matched else float(text)
    except ValueError:
        raise ConfigError(f"parameters are a number such as 25M or 1.3B, not {text!r}") from None
