"""Compiled whole steps against the eager loop: the same numbers to rounding for each optimizer; else eager, with a reason."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch import optim as O
from torch.nn import functional as F

import flodl as fl
from flodl.train.compiled import WholeStep

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch.*")  # inductor's own

STEPS = 60


@pytest.fixture(scope="module")
def compiler() -> None:
    """Skips where torch's compiler does not work at all: no C++ compiler, or torch lies in a folder with a space."""
    try:
        torch.compile(lambda x: x + 1, options={"compile_threads": 1})(torch.ones(3))
    except Exception as error:
        pytest.skip(f"torch.compile does not work here: {str(error).strip().splitlines()[0]}")


def make_model() -> nn.Module:
    # no bias before a BatchNorm: its gradient is nothing but rounding, which an adaptive optimizer makes steps of
    flow = fl.flow(nn.Linear(16, 16, bias=False)).through(nn.BatchNorm1d(16)).through(nn.Tanh())
    return flow.also(nn.Linear(16, 16)).through(nn.Linear(16, 4)).build()


def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    out = model(batch[0])
    return F.cross_entropy(out, batch[1]), {"accuracy": (out.argmax(1) == batch[1]).float().mean()}


def batches(steps: int = STEPS) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(256, 16, generator=generator)
    y = (x[:, :4] + 0.1 * x[:, 4:8]).argmax(1)
    places = [torch.randint(256, (32,), generator=generator) for _ in range(steps)]
    return [(x[i], y[i]) for i in places]


def take(step: WholeStep | None, model: nn.Module, optimizer: O.Optimizer, batch: Any) -> Tensor:
    """One step, compiled where `step` can; the learning rate falls."""
    for group in optimizer.param_groups:
        group["lr"] *= 0.99
    result = step.step(batch) if step else None
    if result is not None:
        return result[0]
    loss, _ = loss_fn(model, batch)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def groups(model: nn.Module) -> list[dict[str, Any]]:
    weights = [p for p in model.parameters() if p.dim() > 1]
    return [{"params": weights}, {"params": [p for p in model.parameters() if p.dim() == 1], "lr": 3e-3}]


OPTIMIZERS: dict[str, Callable[[nn.Module], O.Optimizer]] = {
    "sgd": lambda m: O.SGD(m.parameters(), 0.1),
    "sgd, momentum and decay": lambda m: O.SGD(groups(m), 0.1, momentum=0.9, nesterov=True, weight_decay=1e-2),
    "adam, amsgrad and decay": lambda m: O.Adam(m.parameters(), 1e-2, amsgrad=True, weight_decay=1e-2),
    "adamw, groups": lambda m: O.AdamW(groups(m), 1e-2, betas=(0.8, 0.99)),
    "rmsprop": lambda m: O.RMSprop(m.parameters(), 1e-3, momentum=0.9, centered=True, weight_decay=1e-2),
    "adagrad": lambda m: O.Adagrad(m.parameters(), 1e-2, lr_decay=1e-3),
    "nadam": lambda m: O.NAdam(m.parameters(), 1e-2, decoupled_weight_decay=True, weight_decay=1e-2),
    "radam, maximize": lambda m: O.RAdam(m.parameters(), 1e-3, maximize=True, weight_decay=1e-2),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_equals_the_eager_loop_and_may_go_back_to_it(compiler: None, name: str) -> None:
    torch.manual_seed(0)
    model = make_model()
    expected = copy.deepcopy(model)
    optimizer, twin = OPTIMIZERS[name](model), OPTIMIZERS[name](expected)
    step = WholeStep(loss_fn, model, optimizer)
    compiles = torch._dynamo.utils.counters["stats"]["unique_graphs"] if hasattr(torch, "_dynamo") else 0
    losses = []
    for number, batch in enumerate(batches()):
        eagerly = number >= STEPS - 10  # the optimizer's state is where torch keeps it
        losses.append((take(None if eagerly else step, model, optimizer, batch), take(None, expected, twin, batch)))
    assert step.reason == ""
    assert step.compiled_steps == STEPS - 11
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == compiles + 1  # a schedule compiles nothing anew
    got, wanted = torch.tensor(losses).double().T
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(model.state_dict(), expected.state_dict(), rtol=1e-4, atol=1e-5)
    for p, q in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(optimizer.state[p], twin.state[q], rtol=1e-4, atol=1e-5)


def trained(step: str, epochs: int = 3, **settings: Any) -> tuple[fl.TrainedState, fl.Trainer]:
    builder = fl.Trainer.builder(
        lambda: nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)), lambda p: O.Adam(p, lr=3e-3), loss_fn
    )
    settings = {"quiet": True, "record": False, "batch_size": 64, "step": step, **settings}
    handle = builder.dataset(fl.data.Digits("train")).num_epochs(epochs).settings(**settings).run()
    return handle.join(), handle.trainer


@pytest.mark.slow
def test_the_builder_trains_compiled_with_a_short_last_batch(compiler: None) -> None:
    eager, _ = trained("eager")
    compiled, trainer = trained("compiled")
    torch.testing.assert_close(compiled.state_dict, eager.state_dict, rtol=1e-4, atol=1e-5)
    assert compiled.metrics == pytest.approx(eager.metrics, rel=1e-4)
    assert "65 steps were one compiled graph each" in trainer.step_report()  # not the first, nor three short batches


def reason(model: nn.Module, optimizer: O.Optimizer, train_fn: Any = loss_fn) -> str:
    """Why the second step is eager; it is right all the same."""
    expected = copy.deepcopy(model)
    step = WholeStep(train_fn, model, optimizer)
    for batch in batches(3):
        assert step.step(batch) is None
        loss_fn(model, batch)[0].backward()
        optimizer.step()
        optimizer.zero_grad()
    assert not torch.equal(next(model.parameters()), next(expected.parameters()))
    return step.reason


class OtherSGD(O.SGD):
    """A subclass may do anything in its step."""


def test_what_cannot_be_compiled_is_eager_and_says_why() -> None:
    model = make_model()
    assert "OtherSGD has no functional form" in reason(model, OtherSGD(model.parameters(), 0.1))
    model = make_model()
    next(model.parameters()).register_hook(lambda g: g)
    assert "gradient hook" in reason(model, O.SGD(model.parameters(), 0.1))
    model = make_model()
    optimizer = O.SGD(model.parameters(), 0.1)
    optimizer.register_step_post_hook(lambda *_: None)
    assert "step hook" in reason(model, optimizer)

    def untraceable(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        loss = loss_fn(model, batch)[0]
        return loss if loss.item() > 0 else -loss  # what runs depends on a value

    model = make_model()
    assert "it does not compile" in reason(model, O.SGD(model.parameters(), 0.1), untraceable)


def test_a_hook_of_the_users_own_is_called_at_each_step() -> None:
    model = make_model()
    optimizer = O.SGD(model.parameters(), 0.1)
    called: list[object] = []
    optimizer.register_step_pre_hook(lambda *_: called.append(1))
    with fl.Trainer.setup(model, optimizer, step="compiled", quiet=True, record=False) as trainer:
        for batch in batches(4):
            trainer.train_step(loss_fn, batch)
        assert "the optimizer has a step hook" in trainer.step_report()
    assert len(called) == 4


def test_the_line_that_says_so_and_the_settings_that_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    def train_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, dict[str, Any]]:
        loss, metrics = loss_fn(model, batch)
        return loss, {"accuracy": metrics["accuracy"].item()}

    builder = fl.Trainer.builder(lambda: nn.Linear(64, 10), lambda p: O.Adadelta(p), train_fn)
    builder.dataset(fl.data.Digits("train")).num_epochs(1).settings(step="compiled", record=False).run().join()
    assert capsys.readouterr().err.count("warning: steps are taken eagerly: Adadelta has no functional form") == 1
    with pytest.raises(fl.ConfigError, match="reads each loss before its update"):
        builder.settings(nan_policy="stop")
