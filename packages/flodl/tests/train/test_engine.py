"""Every recipe against the plain loop, on twelve models; what can go wrong on the way; and that everything is put back."""

from __future__ import annotations

import copy
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch import optim as O
from torch.nn import functional as F

import flodl as fl
from flodl.train import machine
from flodl.train.chooser import Chooser, Trial
from flodl.train.engine import StepEngine
from flodl.train.recipes import Recipe
from flodl.train.remembered import Remembered
from flodl.train.update import UpdateRule

_spec = importlib.util.spec_from_file_location("step_models", Path(__file__).with_name("step_models.py"))
assert _spec
assert _spec.loader
step_models = importlib.util.module_from_spec(_spec)
sys.modules["step_models"] = step_models
_spec.loader.exec_module(step_models)
CASES, state = step_models.CASES, step_models.process_state

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inductor's own, and of fork beside threads

STEPS = 200
EAGER = ["eager+fused", "eager+fused+onednn+allocator", "eager+channels_last+fused", "eager+threads=2"]


def take(engine: StepEngine | None, case: Any, model: nn.Module, optimizer: O.Optimizer, number: int) -> Tensor:
    batch = case.batch(number)
    taken = engine.step(case.train_fn, batch) if engine else None
    if taken is not None:
        return taken[0]

    def eagerly() -> Tensor:
        loss = case.train_fn(model, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    if engine is None:
        return eagerly()
    with engine.eager():
        return eagerly()


def train(case: Any, mode: str, steps: int = STEPS) -> tuple[list[float], dict[str, Tensor], StepEngine]:
    """Losses and weights of so many steps by a recipe, on a copy of the model; nothing else is changed by it."""
    model = copy.deepcopy(case.model)
    optimizer = case.optimizer(model)
    flags = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
    before = state()
    torch.manual_seed(1)
    engine = StepEngine(model, optimizer, mode=mode)
    losses = [float(take(engine, case, model, optimizer, number)) for number in range(steps)]
    engine.close()
    assert state() == before
    assert [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups] == flags
    assert all(p.is_contiguous() for p in model.parameters())
    return losses, model.state_dict(), engine


def plain(case: Any, steps: int = STEPS) -> tuple[list[float], dict[str, Tensor]]:
    model = copy.deepcopy(case.model)
    optimizer = case.optimizer(model)
    torch.manual_seed(1)
    return [float(take(None, case, model, optimizer, n)) for n in range(steps)], model.state_dict()


def assert_equal(got: tuple[list[float], dict[str, Tensor]], wanted: tuple[list[float], dict[str, Tensor]]) -> None:
    torch.testing.assert_close(torch.tensor(got[0]), torch.tensor(wanted[0]), rtol=2e-5, atol=1e-6)
    torch.testing.assert_close(got[1], wanted[1], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_eager_recipes_equal_the_plain_loop(name: str) -> None:
    torch.manual_seed(0)
    case = CASES[name]()
    wanted = plain(case)
    for mode in EAGER:
        losses, weights, _ = train(case, mode)
        assert_equal((losses, weights), wanted)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_compiled_recipes_equal_the_plain_loop(name: str) -> None:
    torch.manual_seed(0)
    case = CASES[name]()
    losses, weights, engine = train(case, "whole+onednn")
    assert_equal((losses, weights), plain(case))  # dropout draws the same numbers
    if name == "lstm":  # torch 2.13 cannot compile oneDNN's, which is eager then
        assert "mkldnn_rnn_layer" in engine.report()
        return
    assert f"{STEPS - 1} steps were one compiled graph each" in engine.report(), engine.report()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlp", "convolutions"])
def test_the_model_compiled_in_place_equals_the_plain_loop(name: str) -> None:
    torch.manual_seed(0)
    case = CASES[name]()
    wanted = plain(case, 40)
    model = copy.deepcopy(case.model)
    optimizer = case.optimizer(model)
    keys, before = list(model.state_dict()), state()
    engine = StepEngine(model, optimizer, mode="model+fused+onednn", own_loop=True)
    losses = []
    for number in range(40):
        losses.append(float(take(None, case, model, optimizer, number)))
        engine.boundary(case.batch(number))
        assert list(model.state_dict()) == keys
    assert model._compiled_call_impl is not None
    engine.close()
    assert model._compiled_call_impl is None
    assert state() == before
    assert_equal((losses, model.state_dict()), wanted)


@pytest.mark.slow
def test_clipping_windows_and_averages_inside_the_graph() -> None:
    torch.manual_seed(0)
    case = CASES["mlp"]()
    runs = []
    for step in ("eager", "compiled"):
        x, y = case.x.flatten(0, 1), case.y.flatten(0, 1)
        builder = fl.Trainer.builder(
            lambda: copy.deepcopy(case.model), lambda p: O.Adam(p, 1e-3, weight_decay=1e-2), case.train_fn
        ).dataset((x[:124], y[:124]))
        settings: dict[str, Any] = {
            "batch_size": 8, "accumulate": 3, "clip_norm": 0.05, "clip_value": 0.01, "ema": 0.9, "step": step,
            "quiet": True, "record": False, "epochs": 8, "scheduler": "cosine",
        }  # fmt: skip
        handle = builder.settings(**settings).run()
        result, trainer = handle.join(), handle.trainer
        ema = trainer._update.rule.ema
        assert ema
        runs.append((result.state_dict, dict(ema.shadow), ema.updates, trainer.history, trainer.step_report()))
    eager, compiled = runs
    assert "graph each" in compiled[4], compiled[4]
    torch.testing.assert_close(compiled[0], eager[0], rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(compiled[1], eager[1], rtol=1e-3, atol=1e-5)
    assert compiled[2] == eager[2]
    for a, b in zip(compiled[3], eager[3], strict=True):
        assert a == pytest.approx(b, rel=1e-4)


def test_float16_stays_eager_with_a_line() -> None:
    case = CASES["mlp"]()
    optimizer = case.optimizer(case.model)
    engine = StepEngine(case.model, optimizer, mode="compiled", rule=UpdateRule(amp="fp16"))
    for number in range(3):
        take(engine, case, case.model, optimizer, number)
    assert (
        engine.news == "steps are taken eagerly: float16 scales the loss and looks at its gradients before each update"
    )
    engine.close()


# -- what may go wrong


@pytest.mark.slow
def test_short_and_changing_batches_are_right_without_many_compiles() -> None:
    torch.manual_seed(0)
    case = CASES["transformer"]()
    model, expected = copy.deepcopy(case.model), copy.deepcopy(case.model)
    optimizer, twin = case.optimizer(model), case.optimizer(expected)
    engine = StepEngine(model, optimizer, mode="compiled")
    for number in range(60):
        x, y = case.batch(number)
        cut = case._replace(
            x=x[None, : 3 if number % 9 == 8 else 8, : 2 + number % 4], y=y[None, : 3 if number % 9 == 8 else 8]
        )
        cut = cut._replace(x=cut.x.expand(16, *cut.x.shape[1:]), y=cut.y.expand(16, *cut.y.shape[1:]))
        got, wanted = take(engine, cut, model, optimizer, 0), take(None, cut, expected, twin, 0)
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-6)
    assert engine._whole is not None
    assert len(engine._whole._compiled) <= 3
    engine.close()


@pytest.mark.slow
def test_two_models_by_turns_and_a_mode_that_changes() -> None:
    torch.manual_seed(0)
    cases = [CASES["dropout"](), CASES["residual"]()]
    rows = []
    for case in cases:
        model, expected = copy.deepcopy(case.model), copy.deepcopy(case.model)
        optimizer = case.optimizer(model)
        rows.append(
            (case, model, optimizer, expected, case.optimizer(expected), StepEngine(model, optimizer, mode="compiled"))
        )
    for number in range(30):
        if number == 15:  # dropout off: the graph has it as a constant
            rows[0][1].eval(), rows[0][3].eval()
        for case, model, optimizer, expected, twin, engine in rows:
            torch.manual_seed(number)
            got = take(engine, case, model, optimizer, number)
            torch.manual_seed(number)
            torch.testing.assert_close(got, take(None, case, expected, twin, number), rtol=1e-4, atol=1e-6)
    for row in rows:
        assert row[5].report().count("29 steps were one compiled graph each") == 1, row[5].report()
        row[5].close()


def gradient_penalty(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    x = batch[0].detach().requires_grad_()
    out = model(x)
    (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    return F.mse_loss(out, batch[1]) + 0.1 * slope.pow(2).sum()


def reads_a_value(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    loss = F.mse_loss(model(batch[0]), batch[1])
    return loss if loss.item() > 0.1 else 2 * loss


@pytest.mark.slow
@pytest.mark.parametrize("train_fn", [gradient_penalty, reads_a_value])
def test_what_cannot_be_traced_is_right_all_the_same(train_fn: Any) -> None:
    torch.manual_seed(0)
    case = CASES["mlp"]()
    expected = copy.deepcopy(case.model)
    optimizer, twin = case.optimizer(case.model), case.optimizer(expected)
    engine = StepEngine(case.model, optimizer, mode="compiled")
    for number in range(6):
        batch = case.batch(number)
        taken = engine.step(train_fn, batch)
        if taken is None:
            with engine.eager():
                loss = train_fn(case.model, batch)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
        wanted = train_fn(expected, batch)
        wanted.backward()
        twin.step()
        twin.zero_grad()
        torch.testing.assert_close((taken[0] if taken else loss).detach(), wanted.detach(), rtol=1e-4, atol=1e-6)
    if train_fn is reads_a_value:
        assert engine.news
        assert engine.news.count("\n") == 0
        assert "does not compile" in engine.news
    engine.close()


@pytest.mark.slow
def test_without_a_compiler_steps_are_eager_with_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import torch._inductor.config

    case = CASES["frozen"]()
    optimizer = case.optimizer(case.model)
    with torch._inductor.config.patch({"cpp.cxx": ("/nonexistent/c++",), "force_disable_caches": True}):
        engine = StepEngine(case.model, optimizer, mode="compiled")
        said = []
        for number in range(4):
            take(engine, case, case.model, optimizer, number)
            said += [engine.news] if engine.news else []
            engine.news = None
        engine.close()
    assert len(said) == 1
    assert said[0].startswith("steps are taken eagerly: it does not compile")


def test_a_wrong_graph_trains_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first compiled step is compared with the eager one. Here, the graph is another model's."""
    from flodl.train.verify import first_step_agrees

    torch.manual_seed(0)
    case = CASES["mlp"]()
    expected = copy.deepcopy(case.model)
    optimizer, twin = case.optimizer(case.model), case.optimizer(expected)
    take(None, case, case.model, optimizer, 0), take(None, case, expected, twin, 0)

    def wrong() -> Tensor:
        with torch.no_grad():
            for p in case.model.parameters():
                p.add_(1.0)
        return case.train_fn(case.model, case.batch(1)).detach()

    why = first_step_agrees(lambda: case.train_fn(case.model, case.batch(1)), case.model, optimizer, None, wrong)
    assert "its first step differs from the eager one" in why
    take(None, case, expected, twin, 1)
    torch.testing.assert_close(case.model.state_dict(), expected.state_dict())
    for p, q in zip(case.model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(optimizer.state[p], twin.state[q])


# -- the chooser


class Clock:
    """How long steps take, by recipe."""

    def __init__(self, **seconds: float) -> None:
        self.seconds = seconds

    def run(self, chooser: Chooser, steps: int) -> None:
        for _ in range(steps):
            chooser.took(self.seconds[str(chooser.recipe).replace("+", "_")])


def test_the_chooser_takes_what_is_faster_and_goes_back_to_plain_when_that_is() -> None:
    moves = [
        ("fused", lambda best: best.but(fused=True)),
        ("onednn", lambda best: best.but(onednn=True)),
    ]
    chooser = Chooser(Recipe(), moves, lambda: 10_000)
    Clock(eager=0.03, eager_fused=0.02, eager_fused_onednn=0.04).run(chooser, 200)
    assert chooser.best == Recipe(fused=True)
    assert chooser.settled
    assert chooser.checked
    assert [t.verdict for t in chooser.trials] == ["faster", "slower", "slower"]
    Clock(eager=0.01, eager_fused=0.02).run(chooser, 8000)  # another machine's load, another kernel: it is found out
    assert chooser.best == Recipe()


def test_noise_is_no_gain_and_a_short_training_tries_nothing() -> None:
    trial = Trial(Recipe(), Recipe(fused=True), 3)
    generator = torch.Generator().manual_seed(0)
    while not trial.verdict:
        trial.took(0.01 + 0.002 * float(torch.rand((), generator=generator)))
    assert trial.verdict != "faster"
    chooser = Chooser(Recipe(), [("fused", lambda best: best.but(fused=True))], lambda: 50)
    Clock(eager=1.0).run(chooser, 50)
    assert not chooser.trials


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Path]:
    return tmp_path / "cache"


def auto(case: Any, cache: Path, steps: int = 400) -> StepEngine:
    """A training that believes to be long."""
    model = copy.deepcopy(case.model)
    optimizer = case.optimizer(model)
    engine = StepEngine(model, optimizer, mode="auto", total_steps=lambda: 10**7, why_not_whole="not here", cache=cache)
    before = state()
    for number in range(steps):
        take(engine, case, model, optimizer, number)
        if engine.searched:
            break
    engine.close()
    assert state() == before
    return engine


@pytest.mark.slow
def test_a_choice_is_remembered(cache: Path) -> None:
    torch.manual_seed(0)
    case = CASES["mlp"]()
    first = auto(case, cache, 20_000)
    (file,) = cache.glob("*.json")
    assert f'"recipe": "{first.recipe}"' in file.read_text()
    second = auto(case, cache, 3)
    assert second.recipe == first.recipe
    assert "remembered" in second.report()


@pytest.mark.parametrize("text", ["", "{", '{"version": 99}', '{"version": 1}', "\x00\xff", "[]"])
def test_a_damaged_or_foreign_cache_is_ignored_with_a_line(cache: Path, text: str) -> None:
    case = CASES["mlp"]()
    model, key = case.model, {"model": "x"}
    choice = Remembered(key, cache)
    choice.write(Recipe(fused=True), True, {}, None)
    assert Remembered(key, cache).recipe == Recipe(fused=True)
    (file,) = cache.glob("*.json")
    file.write_text(text, encoding="latin-1")
    damaged = Remembered(key, cache)
    assert damaged.recipe is None
    assert damaged.problem
    assert "\n" not in damaged.problem
    damaged.write(Recipe(), True, {}, None)
    assert Remembered(key, cache).recipe == Recipe()
    assert model is case.model


def test_a_cache_that_cannot_be_written_is_no_failure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    choice = Remembered({"model": "x"}, tmp_path / "file" / "below")
    choice.write(Recipe(), True, {}, None)
    assert "not remembered" in choice.problem
    if Path("/dev/full").exists():  # a full disk, by what the system says of one
        folder = tmp_path / "full"
        folder.mkdir()
        choice = Remembered({"model": "x"}, folder)
        real = os.replace

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        os.replace = full  # type: ignore[assignment]
        try:
            choice.write(Recipe(), True, {}, None)
        finally:
            os.replace = real
        assert "No space left" in choice.problem
        assert not list(folder.iterdir())


def test_names_of_recipes() -> None:
    for text in ("eager", "whole+onednn+threads=1", "model+fused+channels_last+allocator"):
        assert str(Recipe.parse(text)) == str(Recipe.parse(str(Recipe.parse(text))))
    assert Recipe.parse("compiled") == Recipe(graph="whole")
    with pytest.raises(fl.ConfigError, match=r"there is no 'fusde'.*fused"):
        Recipe.parse("eager+fusde")


@pytest.mark.parametrize("mode", ["eager+onednn", "whole+onednn"])
def test_a_recipe_by_name_has_exact_products_too(mode: str) -> None:
    """On processors with AMX the switch to oneDNN really computes in bfloat16."""
    torch.manual_seed(0)
    model = nn.Linear(512, 512, bias=False)
    optimizer = O.SGD(model.parameters(), lr=0.0)
    engine = StepEngine(model, optimizer, mode=mode)
    x = torch.randn(256, 512)
    exact = x.double() @ model.weight.detach().double().T
    size = x.double().abs() @ model.weight.detach().double().abs().T
    errors = []

    def train_fn(model: nn.Module, batch: Tensor) -> Any:
        out = model(batch)
        return out.sum(), {"out": out}

    for _ in range(3):
        taken = engine.step(train_fn, x)
        if taken is None:
            with engine.eager():
                loss, metrics = train_fn(model, x)
                loss.backward()
                optimizer.step()
        else:
            metrics = taken[1]
        errors.append(float(((metrics["out"].detach() - exact).abs() / size).max()))
    assert ("this machine or training has of it" in (engine.news or "")) == (not machine.onednn_is_exact())
    engine.close()
    assert max(errors) < 2e-6


def test_products_by_onednn_are_checked_on_this_machine() -> None:
    exact = machine.onednn_is_exact()
    a, b = torch.randn(300, 500), torch.randn(500, 200)
    with machine.in_force(Recipe(onednn=True)):
        product = a @ b
    error = ((product - a.double() @ b.double()).abs() / (a.double().abs() @ b.double().abs())).max()
    assert bool(error < 2e-6) == exact


def test_a_loop_of_ones_own_that_fails_leaves_nothing_changed() -> None:
    case = CASES["mlp"]()
    everything, before = "eager+fused+onednn+allocator+threads=2", state()
    with (
        pytest.raises(ZeroDivisionError),
        fl.Trainer.setup(
            case.model,
            case.optimizer(case.model),
            step=everything,
            quiet=True,
            record=False,
        ) as trainer,
    ):
        for number in range(5):
            trainer.step(case.train_fn(trainer.model, case.batch(number)))
        assert torch.get_num_threads() == 2
        raise ZeroDivisionError
    assert state() == before
    assert trainer.optimizer.param_groups[0]["fused"] is None


def test_what_was_found_by_the_end_of_a_short_search_is_recorded() -> None:
    case = CASES["mlp"]()
    with fl.Trainer.setup(
        case.model, case.optimizer(case.model), (case.x[0], case.y[0]), batch_size=8, quiet=True
    ) as t:
        for _ in t.epochs(10**7):
            for batch in t.batches():
                t.train_step(case.train_fn, batch)
            engine = t._stepper.engine
            if engine and engine._chooser and engine._chooser.trials:
                break
    assert t.run.folder
    with fl.monitor.RunView(t.run.folder) as view:
        (choice,) = [event.data for event in view.events() if event.kind == "choice"]
    assert choice["recipe"] == str(engine.recipe)
    assert choice["trials"]
