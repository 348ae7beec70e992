"""Forward references: state that is carried between calls."""

from __future__ import annotations

import copy
import pickle
import threading

import pytest
import torch
from torch import Tensor, nn

import flodl as fl
from flodl.graph.dry import dry_run

from .parity import F64, linear


def beside(x: Tensor, h: Tensor) -> Tensor:
    return torch.cat([x, h], 1)


def recurrent(save_state: bool = False) -> tuple[fl.Graph, nn.Linear]:
    """h' = tanh(W [x, h]) with 4 features in and 6 carried: the zeros are not shaped like the input."""
    cell = linear(10, 6)
    flow = fl.flow(beside).using("h").through(cell).through(torch.tanh).tag("h")
    return flow.build(save_state=save_state), cell


def test_the_zeros_have_the_shape_of_the_value() -> None:
    model, cell = recurrent()
    x1, x2 = torch.randn(2, 3, 4, dtype=F64)
    h1 = torch.tanh(cell(torch.cat([x1, torch.zeros(3, 6, dtype=F64)], 1)))
    assert torch.equal(model(x1), h1)
    assert torch.equal(model(x2), torch.tanh(cell(torch.cat([x2, h1], 1))))
    model.reset_state()
    assert model(x1[:2]).shape == (2, 6)  # another batch size after a reset
    with pytest.raises(fl.StepError, match=r"step 1.*state 'h' holds a batch of 2, this batch has 3.*reset_state"):
        model(x1)


def test_two_states_of_different_shapes_and_an_image() -> None:
    a, b = linear(4 + 3, 5), linear(5 + 2, 3)
    two = (
        fl.flow(lambda x, p: torch.cat([x, p], -1)).using("p")
        .through(a).fork(linear(5, 2)).tag("q")
        .through(lambda x, q: torch.cat([x, q], -1)).using("q")
        .through(b).tag("p").build()
    )  # fmt: skip
    later = (
        fl.flow(lambda x, p, q: torch.cat([x, p, q], -1)).using("p", "q")
        .through(linear(9, 3)).tag("p").through(linear(3, 2)).tag("q").build()
    )  # fmt: skip
    for model in (two, later):
        first = model(torch.ones(2, 4, dtype=F64))
        assert not torch.equal(first, model(torch.ones(2, 4, dtype=F64)))
    conv = nn.Conv2d(3 + 8, 8, 3, padding=1)
    image = fl.flow(lambda x, h: torch.cat([x, h], 1)).using("h").through(conv).tag("h").build()
    assert image(torch.randn(2, 3, 6, 6)).shape == (2, 8, 6, 6)


def test_the_zeros_are_like_what_flows_where_the_state_is_read() -> None:
    torch.manual_seed(0)
    conv = fl.flow(nn.Conv2d(1, 4, 3, padding=1)).through(nn.Flatten()).through(nn.Linear(256, 16))
    words = fl.flow(nn.Embedding(10, 8)).through(fl.StateAdd()).using("h").through(nn.Linear(8, 8)).tag("h")
    wider = fl.flow(nn.Embedding(10, 8)).through(lambda x, h: torch.cat([x, h], -1)).using("h")
    pooled = fl.flow(lambda x: x.mean(1)).through(nn.Linear(4, 6)).through(fl.StateAdd()).using("h").tag("h")
    for flow, x, shape in (
        (conv.through(fl.StateAdd()).using("h").through(nn.Tanh()).tag("h"), torch.randn(2, 1, 8, 8), (2, 16)),
        (words, torch.randint(0, 10, (3, 5)), (3, 5, 8)),
        (wider.through(nn.Linear(14, 6)).tag("h"), torch.randint(0, 10, (3, 5)), (3, 5, 6)),
        (pooled, torch.randn(3, 7, 4), (3, 6)),
    ):
        model = flow.build()
        first = model(x)
        model.reset_state(h=torch.zeros(shape))
        assert torch.equal(model(x), first)


def test_zeros_that_cannot_be_found_say_why_at_the_step_that_reads_them() -> None:
    x = torch.randn(3, 4, dtype=F64)
    model = fl.flow(linear()).through(lambda x, h: x * h.sum().item() + h).using("h").through(linear()).tag("h").build()
    with pytest.raises(fl.StepError, match=r"step 2 \(through.*a value is needed there.*reset_state\(h=tensor\)"):
        model(x)
    model.reset_state(h=torch.zeros_like(x))
    model(x)
    misfit = fl.flow(linear()).through(fl.StateAdd()).using("h").through(linear(5, 4)).tag("h").build()
    with pytest.raises(fl.StepError, match=r"step 2 .*'h' cannot be found \(flow, step 3 'h' .*Linear.*reset_state"):
        misfit(x)
    earlier = fl.flow(linear(5, 4)).through(fl.StateAdd()).using("h").tag("h").build()
    with pytest.raises(fl.StepError, match=r"^flow, step 1 .*Linear"):  # nothing to do with the state
        earlier(x)


def test_the_input_of_a_flow_with_state_may_be_a_tuple() -> None:
    x, cell = torch.randn(3, 4, dtype=F64), linear()
    here = fl.flow(lambda pair, h: pair[0] + pair[1] + h).using("h").through(cell).tag("h").build()
    after = fl.flow(lambda pair: pair[0] + pair[1]).through(fl.StateAdd()).using("h").through(cell).tag("h").build()
    for model in (here, after):
        first = model((x, x))
        assert torch.equal(first, cell(x + x))
        assert torch.equal(model((x, x)), cell(x + x + first))
        with pytest.raises(fl.StepError, match="holds a batch of 3, this batch has 2"):
            model((x[:2], x[:2]))
    words = fl.flow(lambda words, h: h + len(words)).using("h").tag("h").build()
    with pytest.raises(fl.StepError, match=r"step 1.*no tensor flows where the state 'h' is read"):
        words(["a", "b"])
    words.reset_state(h=torch.zeros(1))
    assert words(["a", "b"]).tolist() == [2]
    assert words(["a"]).tolist() == [3]


def test_a_value_that_grows_asks_for_its_first_value() -> None:
    model = fl.flow(lambda x, seen: torch.cat([seen, x], 1)).using("seen").tag("seen").build()
    with pytest.raises(fl.StepError, match=r"carried state 'seen'.*reset_state\(seen=tensor\)"):
        model(torch.ones(2, 1))
    model.reset_state(seen=torch.zeros(2, 0))
    assert [model(torch.ones(2, 1)).shape[1] for _ in range(3)] == [1, 2, 3]
    with pytest.raises(fl.FlowError, match="no state 'sen' is carried here. Did you mean 'seen'"):
        model.reset_state(sen=torch.zeros(2, 0))


def test_state_that_is_not_per_sample_goes_with_any_batch() -> None:
    model = fl.flow(lambda x, m: x - m).using("m").fork(lambda x: x.mean(0, keepdim=True)).tag("m").build()
    x = torch.randn(3, 4, dtype=F64)
    assert torch.equal(model(x), x)
    assert torch.equal(model(x[:2]), x[:2] - x.mean(0))


def test_whether_state_is_per_sample_is_no_matter_of_equal_sizes() -> None:
    x = torch.randn(3, 4, dtype=F64)
    flow = fl.flow(nn.Identity()).through(lambda x, avg: x - avg).using("avg").fork(lambda x: x.mean(0)).tag("avg")

    for batch in (1, 2, 4):  # as many samples as features, or half as many
        model = flow.build()
        model(torch.ones(batch, 4, dtype=F64))
        assert torch.equal(model(x), x - 1)
    model.reset_state(avg=torch.full((4,), 2.0, dtype=F64))
    assert torch.equal(model(x), x - 2)
    given = flow.build()
    given.reset_state(avg=torch.full((4,), 2.0, dtype=F64))
    assert torch.equal(given(x), x - 2)
    saved, loaded = flow.build(save_state=True), flow.build(save_state=True)
    saved(torch.ones(4, 4, dtype=F64))
    loaded.load_state_dict(saved.state_dict())
    assert torch.equal(loaded(x), x - 1)


def test_state_per_sample_that_was_given_or_loaded_knows_its_batch() -> None:
    flow = fl.flow(fl.StateAdd()).using("h").through(linear()).tag("h")
    given, saved, loaded = flow.build(), flow.build(save_state=True), flow.build(save_state=True)
    given.reset_state(h=torch.zeros(1, 4, dtype=F64))
    saved(torch.ones(1, 4, dtype=F64))
    loaded.load_state_dict(saved.state_dict())
    for model in (given, loaded):
        with pytest.raises(fl.StepError, match=r"step 1.*state 'h' holds a batch of 1, this batch has 3"):
            model(torch.ones(3, 4, dtype=F64))


def test_state_of_two_kinds_and_of_a_nested_flow_beside_each_other() -> None:
    x = torch.randn(4, 4, dtype=F64)
    inner, _ = recurrent()
    flow = fl.flow(inner).through(linear(6, 4)).through(lambda x, h, avg: x + h - avg).using("h", "avg").tag("h")
    model = flow.fork(lambda x: x.mean(0)).tag("avg").build()
    model(x)
    cells = {c.tag: c.per_sample for c in model.children() if hasattr(c, "per_sample")}
    assert cells == {"h": True, "avg": False}
    assert inner.get_submodule("h_state").per_sample is True


def test_state_moves_copies_and_is_saved_when_asked() -> None:
    x = torch.randn(3, 4, dtype=F64)
    model, _ = recurrent()
    model(x)
    assert not any("state" in key for key in model.state_dict())
    expected = copy.deepcopy(model)(x)
    assert torch.equal(pickle.loads(pickle.dumps(model))(x), expected)
    assert model.to(torch.float32)(x.float()).dtype is torch.float32  # the state moved along

    saved, _ = recurrent(save_state=True)
    assert set(saved.state_dict()) == {"linear.weight", "linear.bias"}  # nothing carried yet
    saved(x)
    other, _ = recurrent(save_state=True)
    other.load_state_dict(saved.state_dict())
    assert torch.equal(other(x), saved(x))
    fresh, _ = recurrent(save_state=True)
    saved.load_state_dict(fresh.state_dict())
    assert torch.equal(saved(x), fresh(x))  # no value in the file: zeros again


def test_gradients_go_through_the_calls_until_they_are_cut() -> None:
    model, cell = recurrent()
    x = torch.randn(3, 4, dtype=F64, requires_grad=True)
    model(x)
    model(torch.zeros_like(x)).sum().backward()
    assert x.grad is not None
    assert x.grad.abs().sum() > 0
    x.grad = None
    model.reset_state()
    model(x)
    model.detach_state()
    model(torch.zeros_like(x)).sum().backward()
    assert x.grad is None
    assert cell.weight.grad is not None


def test_a_first_value_can_be_learned() -> None:
    model, cell = recurrent()
    x, start = torch.randn(3, 4, dtype=F64), nn.Parameter(torch.randn(3, 6, dtype=F64))
    for _ in range(2):
        model.reset_state(h=start)
        first = model(x)
        assert torch.equal(first, torch.tanh(cell(torch.cat([x, start], 1))))
        start.grad = None
        model(x).sum().backward()
        assert start.grad is not None
        assert start.grad.abs().sum() > 0
    assert not any(p is start for p in model.parameters())
    parameter = fl.flow(lambda x, h: torch.cat([x, h], 1)).using("h").fork(lambda x: start).tag("h").build()
    assert parameter(x).shape == parameter(x).shape == (3, 10)


def test_a_first_value_that_cannot_be_is_refused_and_changes_nothing() -> None:
    model, _ = recurrent()
    value: object
    for value, name in ((3.0, "float"), (None, "NoneType")):
        with pytest.raises(fl.FlowError, match=f"first value of state 'h' must be a tensor, this is {name}"):
            model.reset_state(h=value)  # type: ignore[arg-type]
    model(torch.ones(3, 4, dtype=F64))
    with pytest.raises(fl.FlowError, match=r"state 'h' must be a tensor like \(3, 6\), this is \(6,\)"):
        model.reset_state(h=torch.zeros(6))
    assert model.get_submodule("h_state").value is not None
    pair = fl.flow(nn.Identity()).through(lambda x, h: x).using("h").fork(lambda x: (x, x)).tag("h").build()
    with pytest.raises(fl.StepError, match=r"'h' must be a tensor, this is a tuple"):
        pair(torch.ones(3, 4))


def test_state_of_a_nested_flow() -> None:
    inner, _ = recurrent()
    model = fl.flow(linear()).through(inner).build()
    x = torch.randn(2, 4, dtype=F64)
    first = model(x)
    assert not torch.equal(model(x), first)
    model.reset_state()
    assert torch.equal(model(x), first)


# Dynamo hides this warning in its own way, which an error filter precedes.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_compiles_without_a_break() -> None:
    model, _ = recurrent()
    x = torch.randn(3, 4, dtype=F64)
    expected = [model(x).detach() for _ in range(3)]
    model.reset_state()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for value in expected:
        torch.testing.assert_close(compiled(x), value)


def test_an_example_is_enough_to_compile_before_the_first_call() -> None:
    flow = fl.flow(beside).using("h").through(linear(10, 6)).through(torch.tanh).tag("h")
    model = flow.build(example=torch.zeros(2, 4, dtype=F64))
    x = torch.randn(3, 4, dtype=F64)
    with torch.no_grad():
        got = torch.compile(model, fullgraph=True, backend="aot_eager")(x)
        model.reset_state()
        torch.testing.assert_close(got, model(x))


@pytest.mark.parametrize("example", [None, torch.zeros(2, 4, dtype=F64)])
def test_an_export_leaves_the_state_of_the_model_alone(example: Tensor | None) -> None:
    flow = fl.flow(fl.StateAdd()).using("h").through(linear()).tag("h")
    model = flow.build() if example is None else flow.build(example=example)
    twice = fl.flow(nn.Identity()).loop_body(model).for_n(2).build()  # the second run starts from what the first left
    x = torch.randn(3, 4, dtype=F64)
    once_program, twice_program = torch.export.export(model, (x,)), torch.export.export(twice, (x,))
    assert model.get_submodule("h_state").value is None
    pickle.loads(pickle.dumps(model))
    first = model(x)
    torch.testing.assert_close(once_program.module()(x), first)
    torch.testing.assert_close(twice_program.module()(x), model(first))
    model.detach_state()
    torch.export.export(model, (x,))
    assert type(model.get_submodule("h_state").value) is Tensor


def test_a_dry_run_in_one_thread_is_none_in_another() -> None:
    model = fl.flow(nn.Identity()).tag("seen").build()
    model.observe("seen")
    x = torch.ones(2)
    with dry_run():
        worker = threading.Thread(target=model, args=(x,))
        worker.start()
        worker.join()
    assert torch.equal(model.tagged("seen"), x)


def test_a_dry_run_leaves_everything_as_it_was() -> None:
    norm = nn.BatchNorm1d(6, dtype=F64)
    model = fl.flow(lambda x, h: torch.cat([x, h], 1)).using("h").through(linear(10, 6)).through(norm).tag("h")
    built = model.through(nn.Dropout(0.5)).build()
    before = copy.deepcopy(built.state_dict())
    assert built.check(torch.randn(3, 4, dtype=F64)) == "(3, 6) float64"
    assert all(torch.equal(a, b) for a, b in zip(built.state_dict().values(), before.values(), strict=True))
    assert built.get_submodule("h_state").value is None


def test_check_names_the_first_misfit() -> None:
    inner = fl.flow(linear(4, 5)).through(linear(6, 2)).label("encoder")
    with pytest.raises(fl.StepError) as caught:
        fl.flow(linear()).through(inner).build().check(torch.randn(3, 4, dtype=F64))
    text = str(caught.value)
    assert text.startswith("flow, step 2 (through(encoder))\n  in flow 'encoder', step 2 (through(Linear)): ")
    assert "input: x (3, 5)" in text
    assert len(text.splitlines()) < 5


def test_check_tries_every_branch_and_needs_no_value() -> None:
    bad = fl.flow(nn.Identity()).switch(fl.FixedSelector(0), [linear(), linear(7, 4)]).build()
    with pytest.raises(fl.StepError, match="step 2"):
        bad.check(torch.randn(3, 4, dtype=F64))
    bad(torch.randn(3, 4, dtype=F64))  # the branch that does not fit never runs here

    def more(x: Tensor) -> Tensor:
        return x.norm(dim=1) < 9

    model = (
        fl.flow(linear()).loop_body(linear()).while_cond(more, 9, per_sample=True)
        .loop_body(linear()).until_cond(fl.LearnedHalt(4).double(), 9)
        .switch(fl.ArgmaxSelector(4, 2).double(), [linear(), linear()], per_sample=True).build()
    )  # fmt: skip
    assert model.check(torch.randn(3, 4, dtype=F64)) == "(3, 4) float64"
