"""Each construct against hand-written PyTorch: values and gradients in float64."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx, nn

import flodl as fl

F64 = torch.float64


def linear(i: int = 4, o: int = 4) -> nn.Linear:
    return nn.Linear(i, o, dtype=F64)


def check(model: nn.Module, reference: Callable[[Tensor], Tensor], x: Tensor | None = None) -> None:
    """Same values, same gradients of input and parameters, same through fx and after a copy."""
    x = torch.randn(5, 4, dtype=F64, requires_grad=True) if x is None else x
    parameters = list(model.parameters())
    got, expected = model(x), reference(x)
    torch.testing.assert_close(got, expected, rtol=0, atol=0)
    weight = torch.randn_like(got)
    for a, b in zip(
        torch.autograd.grad(got, [x, *parameters], weight),
        torch.autograd.grad(expected, [x, *parameters], weight),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(copy.deepcopy(model)(x), expected, rtol=0, atol=0)
    if isinstance(model, fl.Graph):
        torch.testing.assert_close(fx.Interpreter(model, graph=model.fx_graph()).run(x), expected, rtol=0, atol=0)


def test_chain() -> None:
    a, b = linear(), linear()
    check(fl.flow(a).through(nn.GELU()).through(b).build(), lambda x: b(nn.functional.gelu(a(x))))


def test_residual() -> None:
    a, b = linear(), linear()
    check(fl.flow(a).also(b).build(), lambda x: a(x) + b(a(x)))


def test_residual_with_projection() -> None:
    a, skip, main = linear(), linear(4, 3), linear(4, 3)
    check(fl.flow(a).also_with(skip, main).build(), lambda x: skip(a(x)) + main(a(x)))


def test_fork_leaves_the_stream_alone() -> None:
    a, side, b = linear(), linear(), linear()
    model = fl.flow(a).fork(side).tag("s").through(b).through(lambda x, s: x * s).using("s").build()
    check(model, lambda x: b(a(x)) * side(a(x)))


@pytest.mark.parametrize(
    ("how", "join"),
    [
        ("add", lambda a, b, c: a + b + c),
        ("mean", lambda a, b, c: (a + b + c) / 3),
        ("cat", lambda a, b, c: torch.cat([a, b, c], dim=-1)),
        (lambda a, b, c: a * b - c, lambda a, b, c: a * b - c),
    ],
)
def test_split_and_merge(how: object, join: Callable[..., Tensor]) -> None:
    first, parts = linear(), [linear() for _ in range(3)]
    model = fl.flow(first).split(parts).merge(how).through(nn.Identity()).build()  # type: ignore[arg-type]
    check(model, lambda x: join(*(p(first(x)) for p in parts)))


@pytest.mark.parametrize("how", ["add", "mean"])
def test_a_split_into_many_branches(how: str) -> None:
    parts = [linear() for _ in range(400)]

    def reference(x: Tensor) -> Tensor:
        total = parts[0](x)
        for part in parts[1:]:
            total = total + part(x)
        return total if how == "add" else total / len(parts)  # type: ignore[no-any-return]

    check(fl.flow(nn.Identity()).split(parts).merge(how).build(), reference)


def test_merge_along_another_dimension() -> None:
    a, b = linear(), linear()
    check(fl.flow(nn.Identity()).split([a, b]).merge("cat", dim=0).build(), lambda x: torch.cat([a(x), b(x)], dim=0))


def test_merge_with_a_module() -> None:
    a, b, join = linear(), linear(), nn.Bilinear(4, 4, 2, dtype=F64)
    check(fl.flow(nn.Identity()).split([a, b]).merge(join).build(), lambda x: join(a(x), b(x)))


def test_using_by_tag_name_and_renamed() -> None:
    a, b, join = linear(), linear(), nn.Bilinear(4, 4, 4, dtype=F64)
    model = fl.flow(a).tag("h").through(b).through(join).using(input2="h").also(lambda x, h: x * h).using("h").build()

    def reference(x: Tensor) -> Tensor:
        h = a(x)
        y = join(b(h), h)
        return y + y * h

    check(model, reference)


def test_branches_of_a_split_by_group_name() -> None:
    a, b = linear(), linear()
    model = fl.flow(nn.Identity()).split([a, b]).tag_group("head").merge("add").through(lambda x, head_1: x - head_1)
    check(model.using("head_1").build(), lambda x: a(x) + b(x) - b(x))


def test_further_inputs() -> None:
    a = linear()
    model = fl.flow(a).through(lambda x, mask: x * mask).using("mask").input("mask").build()
    x, mask = torch.randn(3, 4, dtype=F64), torch.rand(3, 4, dtype=F64)
    assert torch.equal(model(x, mask), a(x) * mask)
    assert torch.equal(model(x, mask=mask), a(x) * mask)


def test_flows_nest_and_builders_are_built_where_they_stand() -> None:
    a, b, c = linear(), linear(), linear()
    inner = fl.flow(a).also(b)
    check(fl.flow(c).through(inner).build(), lambda x: a(c(x)) + b(a(c(x))))


def test_names_are_the_flows_names() -> None:
    encoder = fl.flow(linear()).tag("scan").through(nn.GELU()).label("encoder").build()
    model = fl.flow(encoder).also(linear()).tag("res").split([linear(), linear()]).tag_group("head").merge("add")
    built = model.through(linear()).through(linear()).build()
    assert {k.removesuffix(".weight") for k in built.state_dict() if k.endswith("weight")} == {
        "encoder.scan", "res", "head_0", "head_1", "linear", "linear_2",
    }  # fmt: skip
    assert built.get_submodule("encoder.scan") is encoder.scan
    assert built.code == (
        "def forward(self, x):\n"
        "    x = self.encoder(x)\n"
        "    x = x + self.res(x)\n"
        "    head_0 = self.head_0(x)\n"
        "    head_1 = self.head_1(x)\n"
        "    x = head_0 + head_1\n"
        "    x = self.linear(x)\n"
        "    x = self.linear_2(x)\n"
        "    return x\n"
    )


def test_a_module_in_two_places_is_tied() -> None:
    shared = linear()
    model = fl.flow(shared).through(nn.Tanh()).through(shared).build()
    assert len(list(model.parameters())) == 2
    assert set(model.state_dict()) == {"linear.weight", "linear.bias"}
    check(model, lambda x: shared(torch.tanh(shared(x))))
    other = copy.deepcopy(model)
    assert len(list(other.parameters())) == 2


def test_copy_of_a_builder_shares_the_beginning_only() -> None:
    a, b, c = linear(), linear(), linear()
    start = fl.flow(a)
    one, two = start.copy().through(b).build(), start.copy().through(c).build()
    x = torch.randn(2, 4, dtype=F64)
    assert torch.equal(one(x), b(a(x)))
    assert torch.equal(two(x), c(a(x)))
    assert one.get_submodule("linear") is two.get_submodule("linear")


def double(x: Tensor) -> Tensor:
    return 2 * x


@pytest.mark.parametrize("after_a_forward", [False, True])
def test_pickle_save_and_move_like_any_module(after_a_forward: bool) -> None:
    model = fl.flow(linear()).through(double).through(nn.BatchNorm1d(4, dtype=F64)).build()
    x = torch.randn(6, 4, dtype=F64)
    if after_a_forward:
        model(x).sum().backward()
    model.eval()
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    for other in (pickle.loads(pickle.dumps(model)), torch.load(buffer, weights_only=False)):
        assert torch.equal(other(x), model(x))
        assert other.code == model.code
    fresh = fl.flow(linear()).through(double).through(nn.BatchNorm1d(4, dtype=F64)).build()
    fresh.load_state_dict(model.state_dict())
    assert torch.equal(fresh.eval()(x), model(x))
    assert model.to(torch.float32)(x.float()).dtype is torch.float32


def test_compiles_without_a_break_and_exports() -> None:
    def scale(x: Tensor, h: Tensor) -> Tensor:
        return x * h.mean()

    model = fl.flow(linear()).tag("h").also(linear()).through(scale).using("h").through(lambda x: x + 1).build()
    x = torch.randn(3, 4, dtype=F64)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), model(x))
    exported = torch.export.export(model, (x,))
    torch.testing.assert_close(exported.module()(x), model(x))


def test_state_is_carried_between_calls() -> None:
    a = linear()
    model = fl.flow(a).through(fl.StateAdd()).using("h").through(torch.tanh).tag("h").build()
    x1, x2 = torch.randn(2, 3, 4, dtype=F64)
    h1 = torch.tanh(a(x1))
    h2 = torch.tanh(a(x2) + h1)
    first, second = model(x1), model(x2)
    assert torch.equal(first, h1)
    assert torch.equal(second, h2)
    (ga,) = torch.autograd.grad(second.sum(), a.weight, retain_graph=True)
    (gb,) = torch.autograd.grad(h2.sum(), a.weight)
    torch.testing.assert_close(ga, gb)  # through both calls
    assert set(model.state_dict()) == {"linear.weight", "linear.bias"}
    other = copy.deepcopy(model)
    assert torch.equal(other(x1), model(x1))
    model.detach_state()
    model(x1).sum().backward()
    model.reset_state()
    assert torch.equal(model(x1), h1)
    with pytest.raises(fl.StepError, match=r"state 'h' holds a batch of 3, this batch has 2.*reset_state"):
        model(x1[:2])


def test_a_flow_of_5000_steps_builds_and_runs() -> None:
    builder = fl.flow(nn.Identity())
    for _ in range(4999):
        builder.through(torch.neg)
    assert torch.equal(builder.build()(torch.ones(2)), -torch.ones(2))


BAD = {
    "class": (
        lambda: fl.flow(linear()).through(nn.ReLU),
        r"step 2, through\(ReLU\): ReLU is a class: write ReLU\(...\)",
    ),
    "not callable": (lambda: fl.flow(linear()).through(3), r"step 2, through\(int\): 3 is not callable"),
    "open split": (lambda: fl.flow(linear()).split([linear()]), r"step 2, split\(Linear\): this split is never merged"),
    "step in split": (
        lambda: fl.flow(linear()).split([linear()]).through(linear()),
        "step 3.*split of step 2 is not merged",
    ),
    "empty split": (lambda: fl.flow(linear()).split([]).merge("add"), "at least one branch"),
    "no split": (lambda: fl.flow(linear()).merge("add"), "step 2.*no split to merge"),
    "merge name": (
        lambda: fl.flow(linear()).split([linear()]).merge("mena"),
        "unknown merge 'mena'. Did you mean 'mean'",
    ),
    "unknown tag": (
        lambda: fl.flow(linear()).tag("memory").through(nn.Bilinear(4, 4, 4)).using(input2="memry"),
        "unknown tag 'memry'. Did you mean 'memory'",
    ),
    "cannot take it": (
        lambda: fl.flow(linear()).tag("m").through(nn.ReLU()).using("m"),
        r"ReLU takes \(input\): .*'m'; rename it with .using\(argument=\"tag\"\), or give the part a parameter",
    ),
    "needs more": (lambda: fl.flow(nn.Bilinear(4, 4, 2)), r"Bilinear takes \(input1, input2\).*using"),
    "no part takes it": (
        lambda: fl.flow(linear()).tag("m").also_with(linear(), linear()).using("m"),
        "none of its parts takes the keyword argument 'm'",
    ),
    "dotted tag": (lambda: fl.flow(linear()).tag("a.b"), "tag 'a.b'.*use 'a_b'"),
    "keyword tag": (lambda: fl.flow(linear()).tag("class"), "use 'class_'"),
    "duplicate tag": (lambda: fl.flow(linear()).tag("a").through(linear()).tag("a"), "step 2.*'a' is taken by step 1"),
    "dotted label": (lambda: fl.flow(linear()).label("a.b"), "label 'a.b'.*use 'a_b'"),
    "duplicate label": (
        lambda: fl.flow(fl.flow(linear()).label("e").build()).through(fl.flow(linear()).label("e").build()),
        "two different parts are named 'e'",
    ),
    "reserved name": (lambda: fl.flow(linear()).tag("forward"), "'forward' is an attribute of every model"),
    "tag of a split": (lambda: fl.flow(linear()).split([linear()]).tag("t").merge("add"), "tag_group"),
    "group without split": (lambda: fl.flow(linear()).tag_group("t"), "tag_group names the branches of a split"),
    "no weights": (lambda: fl.flow(nn.Linear(4, 2)).through(nn.Linear(2, 0)), r"'weight' has shape \(0, 2\)"),
    "input named x": (lambda: fl.flow(linear()).input("x"), "input 'x'"),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_wrong_flows_fail_in_build(case: str) -> None:
    make, message = BAD[case]
    with pytest.raises(fl.FlowError, match=message):
        make().build()


def test_an_error_in_forward_names_step_and_shapes() -> None:
    inner = fl.flow(linear()).through(linear(5, 2)).label("encoder").build()
    model = fl.flow(nn.Identity()).through(inner).label("top").build()
    with pytest.raises(fl.StepError) as caught:
        model(torch.randn(3, 4, dtype=F64))
    assert str(caught.value) == (
        "flow 'top', step 2 (through(encoder))\n"
        "  in flow 'encoder', step 2 (through(Linear)): mat1 and mat2 shapes cannot be multiplied (3x4 and 5x2)\n"
        "  input: x (3, 4) float64"
    )


def test_an_error_in_a_part_of_a_step_names_the_part_and_the_tag() -> None:
    bad = nn.Sequential(nn.Tanh(), linear(5, 4))
    model = fl.flow(linear()).gate(fl.SoftmaxRouter(4, 2).double(), [linear(), bad]).tag("mixed").build()
    for run in (model, model.check):
        with pytest.raises(fl.StepError) as caught:
            run(torch.randn(3, 4, dtype=F64))
        lines = str(caught.value).splitlines()
        assert lines[0].startswith("flow, step 2 'mixed' (gate(SoftmaxRouter, Linear, Sequential)): ")
        assert lines[1:] == [
            "  input: x (3, 4) float64",
            "  in mixed.experts.1.1: Linear(in_features=5, out_features=4, bias=True)",
        ]


def test_a_wrong_call_says_what_the_flow_takes() -> None:
    model = fl.flow(nn.Identity()).input("mask").through(lambda x, mask: x).using("mask").build()
    with pytest.raises(fl.StepError, match=r"flow takes \(x, mask\), was called with \(\(2, 2\)\)"):
        model(torch.ones(2, 2))


def test_an_error_of_the_users_own_code_keeps_its_type() -> None:
    def broken(x: Tensor) -> Tensor:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as caught:
        fl.flow(nn.Identity()).through(broken).build()(torch.ones(2))
    notes = getattr(
        caught.value, "__notes__", ["in flow, step 2 (through(broken)), input: x (2,)"]
    )  # 3.10 has no notes
    assert notes == ["in flow, step 2 (through(broken)), input: x (2,)"]


def added(x: Tensor, h: Tensor) -> Tensor:
    with torch.enable_grad():
        return x + h


@pytest.mark.parametrize("function", [lambda x, h: x + h, added, lambda x, h: added(x, h), lambda x, h: x @ h])
def test_tensors_that_do_not_fit_in_a_function_are_a_short_error(function: Callable[..., Tensor]) -> None:
    model = fl.flow(nn.Linear(4, 5)).input("h").through(function).using("h").build()
    with pytest.raises(fl.StepError, match=r"^flow, step 2 \(through\(\w+\)\): .*\n  input: x \(3, 5\), h \(3, 4\)$"):
        model(torch.ones(3, 4), torch.ones(3, 4))


def test_a_runtime_error_that_the_user_raises_is_the_users() -> None:
    def broken(x: Tensor) -> Tensor:
        raise RuntimeError("mine")

    def passed_on(x: Tensor) -> Tensor:
        try:
            return x + torch.ones(7)
        except RuntimeError as error:
            raise RuntimeError("mine") from error

    for function in (broken, passed_on):
        with pytest.raises(RuntimeError, match="^mine") as caught:
            fl.flow(nn.Identity()).through(function).build()(torch.ones(2))
        assert type(caught.value) is RuntimeError
        if hasattr(caught.value, "__notes__"):  # 3.10 has no notes
            assert caught.value.__notes__ == [f"in flow, step 2 (through({function.__name__})), input: x (2,)"]


def test_tags_that_look_like_the_names_the_forward_needs() -> None:
    a, b, c = linear(), linear(), linear()
    model = (
        fl.flow(a).tag("branch_0").tag("x_").tag("m_previous")
        .split([b, c]).merge("add").tag("x")
        .through(lambda x, m: x + m).using("m")
        .through(lambda x, branch_0, y, p, m_state: x * branch_0 + y + p - m_state)
        .using("branch_0", y="x", p="m_previous").input("m_state").using("m_state").tag("m")
        .build()
    )  # fmt: skip

    def reference(x: Tensor, m: Tensor, m_state: Tensor) -> Tensor:
        h = a(x)
        y = b(h) + c(h)
        return (y + m) * h + y + h - m_state

    x, other = torch.randn(2, 3, 4, dtype=F64)
    first = reference(x, torch.zeros_like(x), other)
    torch.testing.assert_close(model(x, other), first)
    torch.testing.assert_close(model(x, other), reference(x, first, other))


def test_empty_batches() -> None:
    model = (
        fl.flow(linear()).map(linear(4, 4)).each()
        .switch(lambda x: x.argmax(1) % 2, [linear(4, 5), linear(4, 5)], per_sample=True)
        .loop_body(linear(5, 5)).until_cond(lambda x: x[:, 0] > 0, 3, per_sample=True).build()
    )  # fmt: skip
    assert model(torch.empty(0, 4, dtype=F64)).shape == (0, 5)


def test_lazy_parameters() -> None:
    model = fl.flow(nn.LazyLinear(3)).through(nn.ReLU()).build()
    with pytest.raises(fl.StepError, match="'lazy_linear.weight' has no shape yet"):
        model.check(torch.ones(2, 4))
    assert model(torch.ones(2, 4)).shape == (2, 3)
    assert model.check(torch.ones(2, 4)) == "(2, 3)"
