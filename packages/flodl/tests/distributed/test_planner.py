"""The plan: every sample once whatever happens, alike on every rank, and windows of the right length."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flodl.distributed.planner import Planner, Report, Window
from flodl.distributed.split import Split
from flodl.distributed.stream import Range, Stream, chop, parted


def trained(ranges: Sequence[Range], samples: int) -> list[int]:
    return [p for a, b in ranges for p in range(a, b)][:samples]


def report(window: Window, rank: int, done: float, ms: float, batch_size: int, comm: float = 1.0) -> Report:
    share = window.shares[rank]
    planned = sum(b - a for a, b in share.ranges)
    samples = planned if done >= 1 else min(planned, int(done * share.batches) * batch_size)
    batches = -(-samples // batch_size)
    return Report(
        samples=samples, batches=batches, compute_ms=ms * batches, collective_ms=comm, blocked_ms=comm, drift=0.01
    )


@given(st.data())
def test_every_sample_exactly_once(data: st.DataObject) -> None:
    """Ranks of any speed that stop early, are lost, come; plans that are saved, resumed on other ranks, observed late."""
    draw = data.draw
    ranks, n, size, epochs = (draw(st.integers(*limits)) for limits in ((1, 5), (1, 90), (1, 9), (1, 4)))
    ms = [draw(st.floats(0.5, 20)) for _ in range(ranks)]
    overlapped = draw(st.booleans())
    planner = Planner(
        ranks=ranks, batch_size=size, epoch_samples=n, total_samples=n * epochs, cross_epochs=draw(st.booleans()),
        anchor=draw(st.none() | st.integers(1, 20)), max_batch_diff=draw(st.none() | st.integers(0, 5)), overlapped=overlapped,
    )  # fmt: skip
    counts: Counter[int] = Counter()
    flying: list[Window] = []
    for _ in range(10_000):
        if planner.done:
            break
        if planner.drained:
            assert flying
        else:
            window = planner.plan()
            assert len(window.shares) == planner.ranks
            flying.append(window)
        late = overlapped and len(flying) < 2 and not planner.drained
        if late:
            continue
        window = flying.pop(0)
        done = [draw(st.sampled_from([1.0, 1.0, 0.5, 0.0])) for _ in window.shares]
        if sum(s.batches for s in window.shares) and not any(done):
            done[0] = 1.0
        reports = [report(window, rank, done[rank], ms[rank], size) for rank in range(planner.ranks)]
        event = draw(st.sampled_from(["", "", "", "lost", "come", "resume"]))
        if event == "lost" and planner.ranks > 1:
            gone = draw(st.integers(0, planner.ranks - 1))
            planner.reform([rank for rank in range(planner.ranks) if rank != gone])
            del reports[gone], ms[gone]
        before_shares = [share.ranges for share in window.shares]
        planner.observe(window, reports)
        for ranges, told in zip(before_shares, reports, strict=True):
            counts.update(trained(ranges, told.samples))
        if event == "come":
            planner.reform([*range(planner.ranks), None])
            ms.append(3.0)
        if event == "resume":
            flying = []
            planner = Planner(
                ranks=len(ms), batch_size=size, epoch_samples=n, total_samples=n * epochs, position=planner.position,
                pool=planner.pool, overlapped=overlapped,
            )  # fmt: skip
    assert planner.done
    assert counts == Counter(range(n * epochs))
    assert planner.epochs_done == epochs
    assert (planner.position, planner.pool) == (n * epochs, ())


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 30)), max_size=6), st.integers(1, 9))
def test_chop_keeps_all_in_order(steps: list[tuple[int, int]], size: int) -> None:
    ranges, at = [], 0
    for gap, length in steps:
        ranges.append((at + gap, at + gap + length))
        at += gap + length
    pieces = chop(ranges, size)
    assert [p for piece in pieces for a, b in piece for p in range(a, b)] == [p for a, b in ranges for p in range(a, b)]
    sizes = [sum(b - a for a, b in piece) for piece in pieces]
    assert all(n == size for n in sizes[:-1])
    assert not sizes or 1 <= sizes[-1] <= size
    assert [list(part) for part in parted(ranges, sizes)] == pieces


def test_what_comes_back_is_taken_first() -> None:
    stream = Stream(10)
    assert stream.take(12, None) == [(0, 12)]
    stream.give_back([(0, 4), (6, 12)], trained=5)
    assert stream.pool == [(7, 12)]
    assert stream.epochs_done == 0
    assert stream.take(6, 20) == [(7, 12), (12, 13)]
    assert stream.take(100, 20) == [(13, 20)]
    assert stream.left(20) == 0


def march(planner: Planner, ms: Sequence[float], comm: float, windows: int) -> list[Window]:
    made = []
    for _ in range(windows):
        window = planner.plan()
        longest = max(share.batches * m for share, m in zip(window.shares, ms, strict=True))
        reports = []
        for rank, m in enumerate(ms):
            busy = window.shares[rank].batches * m
            blocked = longest - busy + comm
            reports.append(
                Report(
                    samples=10**9,
                    batches=window.shares[rank].batches,
                    compute_ms=busy,
                    collective_ms=blocked,
                    blocked_ms=blocked,
                )
            )
        planner.observe(window, reports)
        made.append(window)
    return made


def planner(**given: object) -> Planner:
    settings = {"ranks": 2, "batch_size": 4, "epoch_samples": None, "max_anchor": 256, **given}
    return Planner(**settings)  # type: ignore[arg-type]


def test_the_slow_rank_sets_the_pace_and_the_cost_of_meeting_the_length() -> None:
    ours = planner()
    windows = march(ours, [2.0, 5.0], comm=3.0, windows=30)
    assert [share.batches for share in windows[0].shares] == [2, 2]  # measured, before anything is known
    last = windows[-1]
    assert 2.2 < last.shares[0].batches / last.shares[1].batches < 2.8
    assert last.target_ms >= 59  # 5 % of the time


def test_a_rank_that_becomes_three_times_slower_is_known_after_three_windows() -> None:
    ours = planner()
    march(ours, [2.0, 5.0], comm=1.0, windows=10)
    windows = march(ours, [2.0, 15.0], comm=1.0, windows=4)
    counts = [share.batches for share in windows[-1].shares]
    assert counts[0] / counts[1] == pytest.approx(7.5, rel=0.2)


def test_settings_of_the_plan() -> None:
    fixed = march(planner(anchor=5), [2.0, 6.0], 1.0, 5)[-1]
    assert [share.batches for share in fixed.shares] == [15, 5]
    near = march(planner(anchor=5, max_batch_diff=3), [2.0, 6.0], 1.0, 5)[-1]
    assert [share.batches for share in near.shares] == [8, 5]
    hinted = planner(speed_hint={0: 3.0}).plan()
    assert [share.batches for share in hinted.shares] == [6, 2]
    shared = planner(partition_ratios=[3.0, 1.0]).plan()
    assert [share.batches for share in shared.shares] == [24, 8]
    capped = march(planner(max_anchor=4), [2.0, 2.0], comm=50.0, windows=9)[-1]
    assert [share.batches for share in capped.shares] == [4, 4]


def test_growing_drift_holds_the_window_and_much_of_it_shortens_it() -> None:
    ours = planner(divergence_threshold=0.5)

    def told(drift: float) -> float:
        window = ours.plan()
        batches = [share.batches for share in window.shares]
        ours.observe(
            window,
            [
                Report(samples=1, batches=n, compute_ms=2.0 * n, collective_ms=9.0, blocked_ms=9.0, drift=drift)
                for n in batches
            ],
        )
        return ours.window_ms

    lengths = [told(d) for d in (0.01, 0.02, 0.03, 0.04, 0.05)]
    assert lengths[-1] == lengths[-2]
    assert told(0.6) < lengths[-1]


@given(st.data())
def test_sizes_of_a_global_batch_follow_speed(data: st.DataObject) -> None:
    rates = data.draw(st.lists(st.floats(0.05, 20), min_size=1, max_size=6))
    split = Split(ranks=len(rates))
    total = 64 * len(rates)
    for _ in range(24):
        sizes = split.sizes(total)
        assert sum(sizes) == total
        assert min(sizes) >= 1
        split.observe([1.0 + n / r for n, r in zip(sizes, rates, strict=True)], sizes)
    times = [1.0 + n / r for n, r in zip(split.sizes(total), rates, strict=True)]
    spread = [t for t, n in zip(times, split.sizes(total), strict=True) if n > 8]
    assert not spread or max(spread) <= 1.6 * min(spread) + 1.0
    assert sum(split.sizes(0)) == 0
    assert sum(split.sizes(1)) == 1


def test_a_newcomer_plans_as_the_others_do() -> None:
    ours = planner(epoch_samples=1000, total_samples=5000)
    for _ in range(4):
        window = ours.plan()
        ours.observe(window, [report(window, rank, 1.0, ms, 4) for rank, ms in enumerate((2.0, 5.0))])
    ours.reform([0, 1, None])
    other = Planner.restore(ours.state())
    for _ in range(5):
        mine, theirs = ours.plan(), other.plan()
        assert mine == theirs
        reports = [report(mine, rank, 1.0, ms, 4) for rank, ms in enumerate((2.0, 5.0, 3.0))]
        ours.observe(mine, reports)
        other.observe(theirs, reports)
