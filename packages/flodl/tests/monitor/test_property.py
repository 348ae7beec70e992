"""Whatever is recorded is read back exactly and in order."""

from __future__ import annotations

import math
import tempfile
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from flodl.monitor import Recorder, RunView
from flodl.monitor.values import dumps, loads

names = st.text(max_size=12)
steps = st.integers(min_value=-(2**63), max_value=2**63 - 1)
numbers = st.floats() | st.integers(-(2**53), 2**53).map(float)
trees = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text().filter(lambda k: k != "$float"), inner, max_size=4)
    ),
    max_leaves=12,
)
records = st.lists(
    st.tuples(st.just("metric"), names, numbers, steps, st.none() | steps, st.integers(0, 99))
    | st.tuples(st.just("metrics"), steps, st.dictionaries(names, numbers, max_size=130))
    | st.tuples(st.just("epoch"), steps, st.dictionaries(names, numbers, max_size=4))
    | st.tuples(st.just("event"), names, st.dictionaries(st.text(), trees, max_size=3))
    | st.just(("flush",)),
    max_size=30,
)


@settings(max_examples=60, deadline=None)
@given(records)
def test_what_is_recorded_is_read_back(recorded: list[tuple[Any, ...]]) -> None:
    points: list[tuple[Any, ...]] = []
    epochs: list[tuple[Any, ...]] = []
    events: list[tuple[Any, ...]] = []
    with tempfile.TemporaryDirectory() as folder:
        with Recorder(folder) as recorder:
            for what, *data in recorded:
                if what == "metric":
                    name, value, step, epoch, rank = data
                    recorder.metric(name, value, step=step, epoch=epoch, rank=rank)
                    points.append((name, step, epoch, rank, value))
                elif what == "metrics":
                    recorder.metrics(data[0], data[1])
                    points += [(name, data[0], None, 0, value) for name, value in data[1].items()]
                elif what == "epoch":
                    recorder.epoch(*data)
                    epochs.append((data[0], sorted(data[1].items())))
                elif what == "event":
                    recorder.event(data[0], data=data[1])
                    events.append((data[0], {"data": data[1]}))
                else:
                    recorder.flush()
        with RunView(recorder.folder) as view:
            assert _exact([(p.name, p.step, p.epoch, p.rank, p.value) for p in view.points()]) == _exact(points)
            assert _exact([(e.number, sorted(e.metrics.items())) for e in view.epochs()]) == _exact(epochs)
            assert _exact([(e.kind, e.data) for e in view.events()]) == _exact(events)
            for name in view.names():
                values = [value for other, *_, value in points if other == name]
                assert _exact([p.value for p in view.series(name)]) == _exact(values)
                assert view.counts(name) == (
                    len(values),
                    sum(math.isnan(v) for v in values),
                    sum(math.isinf(v) for v in values),
                )
            ids = [row.id for rows in (view.points(), view.epochs(), view.events()) for row in rows]  # type: ignore[attr-defined]
            assert len(ids) == len(set(ids))


@given(trees)
def test_json_keeps_every_value(tree: object) -> None:
    assert repr(loads(dumps(tree))) == repr(tree)


def _exact(found: object) -> str:
    """NaN equals NaN; of the two zeros, which SQLite does not tell apart, one."""
    return (
        repr(found).replace("-0.0,", "0.0,").replace("-0.0)", "0.0)").replace("-0.0]", "0.0]").replace("-0.0}", "0.0}")
    )
