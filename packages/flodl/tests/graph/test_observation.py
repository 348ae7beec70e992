"""Observed values, traces, means and trends; what is not observed costs and keeps nothing."""

from __future__ import annotations

import copy
import gc
import math
import pickle
import weakref

import psutil
import pytest
import torch
from torch import Tensor, nn

import flodl as fl
from flodl.graph.trend import Trend

from .parity import linear


def model() -> fl.Graph:
    encoder = fl.flow(nn.Linear(4, 8)).tag("scan").through(nn.Tanh()).label("encoder")
    return fl.flow(encoder).through(nn.Linear(8, 2)).tag("out").through(nn.Identity()).build()


def test_a_tag_is_seen_from_the_next_forward_on_and_detached() -> None:
    m = model()
    with pytest.raises(fl.FlowError, match=r"'out' is not observed: call observe\('out'\)"):
        m.tagged("out")
    m.observe("out", "encoder.scan")
    assert m.tagged("out") is None
    x = torch.randn(3, 4)
    m(x)
    assert torch.equal(m.tagged("encoder.scan"), m.encoder.scan(x))
    assert torch.equal(m.tagged_at("encoder.scan"), m.encoder.tagged("scan"))
    assert not m.tagged("out").requires_grad
    assert "self._records.see('out', x)" in m.code
    m.release()
    assert "see" not in m.code + m.encoder.code
    m(x)
    with pytest.raises(fl.FlowError, match="not observed"):
        m.tagged("encoder.scan")


def test_a_bare_name_that_one_part_has_is_enough() -> None:
    m = model()
    m.observe("scan")
    m(torch.randn(3, 4))
    assert m.tagged("scan").shape == (3, 8)
    two = fl.flow(model()).through(nn.Linear(2, 4)).through(model()).build()
    with pytest.raises(
        fl.FlowError, match=r"'scan' is ambiguous: write one of 'flow.encoder.scan', 'flow_2.encoder.scan'"
    ):
        two.observe("scan")
    with pytest.raises(fl.FlowError, match="Did you mean 'out'"):
        m.observe("ot")


def test_any_module_is_observed_by_its_path() -> None:
    m = model()
    m.observe("encoder.tanh")
    x = torch.randn(3, 4)
    m(x)
    assert torch.equal(m.tagged("encoder.tanh"), m.encoder(x))
    assert m.encoder.tanh._forward_hooks
    m.release("encoder.tanh")
    assert not m.encoder.tanh._forward_hooks


@pytest.mark.parametrize("often", [False, True])
def test_collect_once_or_at_every_batch(often: bool) -> None:
    m = model()
    m.collect("out", "encoder.scan")
    expected: list[tuple[float, float]] = []
    for _ in range(2):
        outs, scans = [], []
        for _ in range(5):
            x = torch.randn(3, 4)
            if often:
                m.collect("out", "encoder.scan")
            outs.append(m(x).mean().item())
            scans.append(m.encoder.scan(x).mean().item())
        expected.append((sum(outs) / 5, sum(scans) / 5))
        means = m.flush()
        assert means == pytest.approx({"out": expected[-1][0], "encoder.scan": expected[-1][1]})
    assert m.trend("out").values == pytest.approx([e[0] for e in expected])
    assert m.trend("encoder.scan") is m.encoder.trend("scan") is m.trend_at("encoder.scan")
    assert m.flush() == {}


def test_record_belongs_to_the_part_it_names() -> None:
    m = model()
    for loss in (3.0, 2.0):
        m.record("loss", loss)
        m.record("loss", torch.tensor(loss + 1, requires_grad=True))
        m.record_at("encoder.cost", 10 * loss)
        assert m.flush() == {"loss": loss + 0.5, "encoder.cost": 10 * loss}
    assert m.encoder.trend("cost").values == [30.0, 20.0]
    assert m.trend("cost").improving(2)
    with pytest.raises(fl.FlowError, match="'encodr'.*Did you mean 'encoder'"):
        m.record("encodr.cost", 1)
    with pytest.raises(fl.FlowError, match="nothing was flushed under the name 'los'. Did you mean 'loss'"):
        m.trend("los")


def test_nan_is_counted_and_left_out() -> None:
    m = fl.flow(nn.Identity()).tag("x_").build()
    m.collect("x_")
    for value in (1.0, math.nan, 3.0):
        m(torch.tensor([value, value]))
        m.record("mine", value)
    assert m.flush() == {"x_": 2.0, "mine": 2.0}
    assert m.trend("x_").nan_count == m.trend("mine").nan_count == 1
    m.record("mine", math.nan)
    assert math.isnan(m.flush()["mine"])
    assert m.trend("mine").nan_count == 2


def trend(*values: float) -> Trend:
    t = Trend()
    t.values = list(values)
    return t


def test_trends() -> None:
    assert trend(5, 4, 3, 2).slope(4) == pytest.approx(-1)
    assert trend(9, 9, 5, 4, 3).slope(3) == pytest.approx(-1)
    assert trend(0, 2, 1, 4).slope(4) == pytest.approx(1.1)  # by hand: (-1.5*0 - 0.5*2 + 0.5*1 + 1.5*4) / 5
    assert math.isnan(trend(1).slope(3))
    assert trend(3, 2, 1).improving(3)
    assert not trend(1, 2, 3).improving(3)
    assert not trend(2, 1).improving(3)  # too few to tell
    assert trend(1, 2, 2, 1).stalled(4, 1e-9)
    assert not trend(1, 2, 2, 1).converged(4, 0.5)
    assert trend(1, 1.1, 1.05).converged(3, 0.11)
    assert not trend(3, math.nan, 1).improving(3)
    assert not trend(1, math.nan, 1).stalled(3, 1)
    for bad in (math.nan, math.inf, -math.inf):
        assert math.isnan(trend(1, bad, 2).slope(3))
        assert not trend(1, bad, 2).improving(3)
        assert not trend(bad, bad, bad).converged(3)
    with pytest.raises(ValueError, match="at least two"):
        trend(1, 2).stalled(1)


def test_groups_of_trends() -> None:
    m = fl.flow(nn.Identity()).split([lambda x: x, lambda x: -x]).tag_group("head").merge("add").build()
    m.collect("head")
    for value in (1.0, 2.0, 3.0):
        m(torch.tensor([value]))
        m.flush()
    heads = m.trends("head")
    assert heads.slopes(3) == pytest.approx({"head_0": 1, "head_1": -1})
    assert heads.mean_slope(3) == pytest.approx(0)
    assert not heads.all_improving(3)
    assert m.trends("head_1").all_improving(3)
    assert not heads.any_stalled(3)
    assert heads.all_converged(3, 2.0)


def test_traces_by_iteration() -> None:
    body = fl.flow(linear()).through(torch.tanh).tag("quality").through(nn.Identity())
    m = fl.flow(nn.Identity()).loop_body(body).for_n(4).tag("refine").build().double()
    with pytest.raises(fl.FlowError, match="not observed"):
        m.traces("quality")
    m.observe("quality")
    for _ in range(2):
        x = torch.randn(3, 4, dtype=torch.float64)
        y = m(x)
        trace = m.traces("quality")
        assert len(trace) == 4
        assert torch.equal(trace[-1], y)
        assert torch.equal(trace[0], m.refine.body(x))
        assert not trace[0].requires_grad
    assert torch.equal(m.traces("refine.body.quality")[1], trace[1])
    with pytest.raises(fl.FlowError, match=r"'refine' is not inside a loop"):
        m.traces("refine")


class Emitting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls % 2:
            fl.emit("odd", x)
        return x + 1


def test_sparse_emits_and_traces_of_a_condition() -> None:
    condition = fl.flow(lambda x: x.mean()).tag("mean").through(lambda m: m >= 4)
    m = fl.flow(nn.Identity()).loop_body(Emitting(), emits=["odd"]).until_cond(condition, 10).build()
    m(torch.zeros(2))  # emits into nothing
    m.conditional_loop.body.calls = 0
    m.observe("odd", "conditional_loop.condition.mean")
    m(torch.zeros(2))
    odd = m.traces("odd")
    assert [None if v is None else v[0].item() for v in odd] == [0, None, 2, None]
    assert [v.item() for v in m.traces("mean")] == [1, 2, 3, 4]
    with pytest.raises(fl.FlowError, match="emitted inside a loop"):
        m.collect("odd")
    m.release()
    assert m.conditional_loop._trace is None


def test_traces_per_sample_have_the_samples_that_run() -> None:
    body = fl.flow(lambda x: x + 1).tag("v")
    m = fl.flow(nn.Identity()).loop_body(body).until_cond(lambda x: x[:, 0] >= 3, 9, per_sample=True).build()
    m.observe("v")
    m(torch.tensor([[2.0], [0.0], [1.0]]))
    assert [v.flatten().tolist() for v in m.traces("v")] == [[3, 1, 2], [2, 3], [3]]


def test_observation_survives_copies_and_compilation() -> None:
    m = model()
    m.observe("out")
    m.collect("out")
    x = torch.randn(3, 4)
    for other in (copy.deepcopy(m), pickle.loads(pickle.dumps(m))):
        y = other(x)
        assert torch.equal(other.tagged("out"), y)
        assert m.tagged("out") is None
    compiled = torch.compile(m, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), m.tagged("out"))
    assert m.flush()["out"] == pytest.approx(compiled(x).mean().item())
    m.release()
    m.flush()
    compiled(x)
    assert m.flush() == {}


def test_no_value_keeps_an_autograd_graph_alive() -> None:
    m = model()
    m.observe("out")
    m.collect("out", "encoder.scan")
    x = torch.randn(3, 4, requires_grad=True)
    y = m(x)
    alive = weakref.ref(x)  # the history of y holds it
    del x
    assert alive() is not None
    del y
    gc.collect()
    assert alive() is None


def test_memory_stays_over_10000_observed_steps() -> None:
    m = model()
    m.observe("encoder.scan")
    m.collect("out", "encoder.scan")
    x = torch.randn(32, 4)
    process = psutil.Process()

    def steps(n: int) -> None:
        for _ in range(n):
            m(x).sum().backward()
            m.record("loss", torch.ones(()))

    steps(1000)
    gc.collect()
    objects, rss_bytes = len(gc.get_objects()), process.memory_info().rss
    steps(10_000)
    gc.collect()
    assert len(gc.get_objects()) - objects < 100
    assert process.memory_info().rss - rss_bytes < 4e6
    m.flush()
