"""The section `ddp:`: how several devices train together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from flodl.errors import ConfigError

__all__ = ["DdpConfig"]


@dataclass(frozen=True, kw_only=True)
class DdpConfig:
    """The section `ddp:`.

    devices: "auto" is every GPU of this machine, else its CPU as one device; "cuda:0,2", "cpu:4" for four processes on the
    CPU. simulate_speed: shares of their own speed that the devices run at, to try things out. mode: who owns the loop, for
    scripts that offer both.

    When they meet: policy "sync", at every batch, which is shared in proportion to speed; "cadence", when the slowest has
    trained its anchor of batches and the others what they could in that time, then weights are averaged by samples;
    "async", as cadence, but training goes on while the average travels; "auto" is sync on equal devices and cadence on
    unequal ones. backend: "nccl" or "cpu" (gloo; "gloo" is the same), "auto" is nccl on GPUs.
    anchor: batches of the slowest device between two meetings; without it, as many as keep what meeting costs at
    `overhead_target` of the time, at most `max_anchor`. divergence_threshold: distance of a replica from the average,
    relative to it, from which they meet more often. max_batch_diff: how many batches the fastest may do more than the
    slowest between two meetings. hosts_every: under cadence, the hosts average with each other at each so many-th meeting
    only; at the others, the devices of one host do among themselves.
    speed_hint: relative speeds by rank, until they are measured ({1: 2.3}). partition_ratios: fixed shares of the data by
    rank, instead of measured speeds.
    outer: a step of Nesterov momentum on the averaged change; True, or {"lr": 0.7, "momentum": 0.6}. lr_scale: what the
    learning rate is multiplied with on several devices: "none", "sqrt" or "linear" in their number, or a number.

    min_ranks: with fewer devices left, training ends. timeout: seconds after which a silent device counts as lost.
    timeline: record what each device does when.
    """

    mode: Literal["builder", "setup"] | None = None
    devices: str = "auto"
    simulate_speed: Sequence[float] | None = None
    policy: Literal["auto", "sync", "cadence", "async"] = "auto"
    backend: Literal["auto", "nccl", "cpu", "gloo"] = "auto"
    anchor: int | Literal["auto"] = "auto"
    max_anchor: int = 64
    overhead_target: float = 0.05
    divergence_threshold: float = 0.05
    max_batch_diff: int | None = None
    hosts_every: int = 1
    speed_hint: Mapping[int | str, float] | None = None
    partition_ratios: Sequence[float] | None = None
    outer: bool | Mapping[str, float] = False
    lr_scale: Literal["none", "sqrt", "linear"] | float = "none"
    min_ranks: int = 1
    timeout: float = 60.0
    timeline: bool = True

    def __post_init__(self) -> None:
        def wrong(name: str, needs: str) -> ConfigError:
            return ConfigError(f"ddp.{name} is {getattr(self, name)!r}; it must be {needs}")

        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                shown = ", ".join(repr(c) for c in choices if c is not None)
                raise wrong(name, f"one of {shown}")
        for name, least in (("max_anchor", 1), ("max_batch_diff", 0), ("hosts_every", 1), ("min_ranks", 1)):
            value = getattr(self, name)
            if value is not None and (not _is(value, int) or value < least):
                raise wrong(name, f"an integer of at least {least}")
        if self.hosts_every > 1 and self.policy not in ("cadence", "auto"):
            raise wrong("hosts_every", f'1 under policy "{self.policy}": only under "cadence" hosts average less often')
        if self.anchor != "auto" and (not _is(self.anchor, int) or self.anchor < 1):
            raise wrong("anchor", 'an integer of at least 1, or "auto"')
        if not _is(self.overhead_target, float) or not 0 < self.overhead_target < 1:
            raise wrong("overhead_target", "between 0 and 1")
        for name in ("divergence_threshold", "timeout"):
            if not _is(getattr(self, name), float) or not getattr(self, name) > 0:
                raise wrong(name, "a number above 0")
        for name in ("simulate_speed", "partition_ratios"):
            values = getattr(self, name)
            if values is not None and not (
                isinstance(values, Sequence) and not isinstance(values, str) and values and all(map(_speed, values))
            ):
                raise wrong(name, "a list of numbers above 0, one for each device")
        if self.simulate_speed is not None and max(self.simulate_speed) > 1:
            raise wrong("simulate_speed", "shares of the devices' own speed, at most 1")
        hint = self.speed_hint
        if hint is not None and not (isinstance(hint, Mapping) and all(map(_speed, hint.values()))):
            raise wrong("speed_hint", "numbers above 0 by rank, such as {1: 2.3}")
        if hint is not None and not all(str(rank).isdecimal() for rank in hint):
            raise wrong("speed_hint", "numbers by rank, which are integers from 0")
        if not isinstance(self.outer, bool):
            if not isinstance(self.outer, Mapping) or not set(self.outer) <= {"lr", "momentum"}:
                raise wrong("outer", "true, false or {lr: ..., momentum: ...}")
            if not all(_is(v, float) and v >= 0 for v in self.outer.values()):
                raise wrong("outer", "numbers of at least 0")
        if self.lr_scale not in ("none", "sqrt", "linear") and not _speed(self.lr_scale):
            raise wrong("lr_scale", '"none", "sqrt", "linear" or a number above 0')

    @property
    def speeds_by_rank(self) -> dict[int, float] | None:
        """`speed_hint` with integers as keys, which a file cannot have."""
        return None if self.speed_hint is None else {int(rank): float(v) for rank, v in self.speed_hint.items()}


_CHOICES: dict[str, tuple[str | None, ...]] = {
    "mode": (None, "builder", "setup"),
    "policy": ("auto", "sync", "cadence", "async"),
    "backend": ("auto", "nccl", "cpu", "gloo"),
}


def _is(value: object, kind: type) -> bool:
    return isinstance(value, (int, float) if kind is float else kind) and not isinstance(value, bool)


def _speed(value: object) -> bool:
    return _is(value, float) and value > 0  # type: ignore[operator]
