"""The trainer's loops against the plain PyTorch loop, bit for bit, on real data."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Adam
from torch.utils.data import DataLoader

import flodl as fl
from flodl.train.resuming import locate as newest

QUIET = {"quiet": True, "record": False}


def make_model() -> nn.Module:
    flow = fl.flow(nn.Linear(64, 32)).through(nn.BatchNorm1d(32)).through(nn.GELU()).through(nn.Dropout(0.1))
    return flow.also(nn.Linear(32, 32)).through(nn.Linear(32, 10)).build()


def weights(model: nn.Module) -> Tensor:
    return torch.cat([v.flatten().double() for v in model.state_dict().values()])


def plain_loop(epochs: int = 2, batch_size: int = 64, seed: int = 3) -> tuple[nn.Module, list[float]]:
    """Hand-written, on the order that (seed, epoch) gives. Returns the model and each epoch's mean loss."""
    data = fl.data.Digits("train")
    x, y = data[list(range(len(data)))]
    torch.manual_seed(seed)
    model = make_model()
    optimizer = Adam(model.parameters(), lr=3e-3)
    means = []
    for epoch in range(epochs):
        losses = []
        for index in fl.data.epoch_order(len(data), seed, epoch).split(batch_size):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x[index]), y[index])
            loss.backward()
            optimizer.step()
            losses += [loss.item()] * len(index)
        means.append(sum(losses) / len(losses))
    return model, means


@pytest.fixture(scope="module")
def reference() -> tuple[nn.Module, list[float]]:
    return plain_loop()


def setup(**settings: Any) -> fl.Trainer:
    torch.manual_seed(3)
    model = make_model()
    settings = {"batch_size": 64, "seed": 3, **QUIET, **settings}
    return fl.Trainer.setup(model, Adam(model.parameters(), lr=3e-3), fl.data.Digits("train"), **settings)


@pytest.mark.parametrize("form", ["step(loss)", "backward and step", "plain optimizer"])
def test_setup_equals_the_plain_loop(form: str, reference: tuple[nn.Module, list[float]]) -> None:
    with setup() as trainer:
        for _ in trainer.epochs(2):
            for x, y in trainer.batches():
                loss = F.cross_entropy(trainer.model(x), y)
                if form == "step(loss)":
                    trainer.step(loss)
                    continue
                loss.backward()
                if form == "plain optimizer":
                    trainer.optimizer.step()
                    trainer.optimizer.zero_grad()
                else:
                    trainer.step(loss=None)
        assert torch.equal(weights(trainer.model), weights(reference[0]))
        assert trainer.global_step == 2 * 23
        if form == "step(loss)":
            torch.testing.assert_close([m["loss"] for m in trainer.history], reference[1], rtol=1e-7, atol=0)


def test_builder_equals_setup(reference: tuple[nn.Module, list[float]]) -> None:
    def train_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, y = batch
        return F.cross_entropy(model(x), y)

    builder = fl.Trainer.builder(make_model, lambda p: Adam(p, lr=3e-3), train_fn)
    handle = builder.dataset(fl.data.Digits("train")).batch_size(64).num_epochs(2).seed(3).settings(**QUIET).run()
    state = handle.join()
    assert torch.equal(torch.cat([v.flatten().double() for v in state.state_dict.values()]), weights(reference[0]))
    torch.testing.assert_close([m["loss"] for m in handle.metrics()], reference[1], rtol=1e-7, atol=0)
    assert (state.epochs, state.steps) == (2, 46)
    assert handle.poll().state == "finished"
    with pytest.raises(RuntimeError):  # the result is no view of the model
        make_model().load_state_dict({**state.state_dict, "linear.weight": torch.zeros(1)})


def test_an_unchanged_plain_loop_is_recorded() -> None:
    data = fl.data.Digits("train")
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    expected = copy.deepcopy(model)
    twin = torch.optim.SGD(expected.parameters(), lr=0.1)
    trainer = fl.Trainer.setup(model, optimizer, quiet=True)
    x, y = data[list(range(256))]
    for m, o in ((model, optimizer), (expected, twin)):
        torch.manual_seed(0)
        for bx, by in DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=100):
            o.zero_grad()
            loss = F.cross_entropy(m(bx), by)
            loss.backward()
            o.step()
            if m is model:
                trainer.record(loss=loss)
    trainer.close()
    assert torch.equal(weights(model), weights(expected))
    assert trainer.global_step == 3
    assert trainer.run.folder is not None
    with fl.monitor.RunView(trainer.run.folder) as view:
        assert view.info().state == "finished"
        assert [p.step for p in view.series("loss")] == [1, 2, 3]


def test_every_sample_once_an_epoch_the_short_batch_included() -> None:
    seen: list[Tensor] = []
    model = nn.Linear(1, 1)
    data = (torch.arange(103.0)[:, None], torch.zeros(103, 1))
    with fl.Trainer.setup(model, torch.optim.SGD(model.parameters(), 0.0), data, batch_size=10, **QUIET) as trainer:
        for _ in trainer.epochs(2):
            for x, y in trainer.batches():
                seen.append(x[:, 0])
                trainer.step(F.mse_loss(trainer.model(x), y))
    first, second = torch.cat(seen[:11]), torch.cat(seen[11:])
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(103))
    assert first.tolist() != second.tolist()


def test_means_are_weighted_by_samples() -> None:
    model = nn.Linear(1, 1)
    data = (torch.arange(5.0)[:, None], torch.zeros(5, 1))
    with fl.Trainer.setup(model, torch.optim.SGD(model.parameters(), 0.0), data, batch_size=2, **QUIET) as trainer:
        for _ in trainer.epochs(1):
            for x, y in trainer.batches():
                trainer.step(F.mse_loss(trainer.model(x), y), mean_x=x.mean())
    assert trainer.history[0]["mean_x"] == pytest.approx(2.0)  # of batch means it would be another number


def test_evaluation_is_weighted_and_leaves_modes_and_gradients_alone() -> None:
    frozen = nn.BatchNorm1d(10)
    with setup() as trainer:
        trainer.model.add_module("frozen", frozen.eval())
        trainer.model.linear.bias.grad = torch.ones(32)
        data = fl.data.Digits("test")

        def metrics(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Mapping[str, Any]:
            assert not model.training
            assert not torch.is_grad_enabled()
            x, y = batch
            return {"accuracy": (model(x).argmax(1) == y).double().mean(), "loss": F.cross_entropy(model(x), y)}

        result = trainer.evaluate(data, metrics, batch_size=77)
        x, y = data[list(range(len(data)))]
        modes = (trainer.model.training, frozen.training, trainer.model.batch_norm1d.training)
        with torch.no_grad():
            whole = trainer.model.eval()(x)
    assert modes == (True, False, True)
    assert result["accuracy"] == pytest.approx((whole.argmax(1) == y).double().mean().item(), abs=1e-12)
    assert result["loss"] == pytest.approx(F.cross_entropy(whole, y).item(), rel=1e-5)
    assert torch.equal(trainer.model.linear.bias.grad, torch.ones(32))


def test_the_run_store_holds_what_happened(capsys: pytest.CaptureFixture[str]) -> None:
    with setup(quiet=False, record=True, name="digits") as trainer:
        for _ in trainer.epochs(2):
            for x, y in trainer.batches():
                trainer.step(F.cross_entropy(trainer.model(x), y), seen=len(x))
            trainer.evaluate(fl.data.Digits("test"), lambda m, b: {"acc": (m(b[0]).argmax(1) == b[1]).float().mean()})
    folder = trainer.run.folder
    assert folder is not None
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("epoch 1/2  loss=")
    assert all(part in lines[1] for part in ("test_acc=", "ETA 0s", "RAM "))
    assert str(folder.relative_to(Path.cwd())) in err
    with fl.monitor.RunView(folder) as view:
        info, epochs = view.info(), view.epochs()
        assert (info.state, info.name, info.total_epochs, info.total_steps) == ("finished", "digits", 2, 46)
        assert [p.step for p in view.series("loss")] == list(range(1, 47))
        assert {"loss", "seen", "test_acc"} <= set(view.names())
        assert [e.number for e in epochs] == [0, 1]
        assert epochs[1].metrics["loss"] == pytest.approx(trainer.history[1]["loss"])
        assert view.config()["training.batch_size"].value == 64
        assert view.config()["training.batch_size"].origin == "argument of Trainer.setup"
        assert view.config()["training.shuffle"].origin == "default"
        assert [e.kind for e in view.events() if e.kind != "steps"] == ["evaluation", "evaluation", "checkpoint"]
        timed = [e for e in view.events() if e.kind == "steps"]
        assert sum(len(e.data["data_us"]) for e in timed) == sum(len(e.data["compute_us"]) for e in timed) == 46
        assert [e.data["first"] for e in timed] == [1, *(1 + (e.step or 0) for e in timed[:-1])]
        assert "Linear(in_features=64" in view.artifact("model.txt")


def test_carried_state_is_cut_between_steps() -> None:
    model = fl.flow(nn.Linear(1, 1)).through(fl.StateAdd()).using("h").through(torch.tanh).tag("h").build()
    data = (torch.rand(8, 1), torch.zeros(8, 1))
    with fl.Trainer.setup(model, torch.optim.SGD(model.parameters(), 0.1), data, batch_size=2, **QUIET) as trainer:
        for _ in trainer.epochs(2):
            for x, y in trainer.batches():
                trainer.step(F.mse_loss(trainer.model(x), y))  # without the cut: backward a second time
    assert trainer.global_step == 8


def test_stop_from_the_loop_and_from_the_handle() -> None:
    with setup(record=True) as trainer:
        for _ in trainer.epochs(5):
            for x, y in trainer.batches():
                trainer.step(F.cross_entropy(trainer.model(x), y))
                if trainer.global_step == 30:
                    trainer.stop()
    assert (trainer.global_step, trainer.position.epoch, trainer.position.sample) == (30, 1, 7 * 64)
    assert trainer.run.folder is not None
    with fl.monitor.RunView(trainer.run.folder) as view:
        assert view.info().state == "stopped"
    builder = fl.Trainer.builder(make_model, lambda p: Adam(p, lr=3e-3), lambda m, b: F.cross_entropy(m(b[0]), b[1]))
    handle = builder.dataset(fl.data.Digits("train")).num_epochs(100_000).settings(**QUIET).run()
    while handle.poll().step < 5:
        pass
    handle.stop()
    state = handle.join()
    assert 5 <= state.steps < 100_000
    assert handle.poll().state == "stopped"


def test_a_stop_written_into_the_store_by_another_process_ends_the_run() -> None:
    with setup(record=True) as trainer:
        for _ in trainer.epochs(100_000):
            for x, y in trainer.batches():
                trainer.step(F.cross_entropy(trainer.model(x), y))
                if trainer.global_step == 3:
                    assert trainer.run.folder is not None
                    fl.monitor.request(trainer.run.folder, "stop", origin="test")
    assert trainer.global_step < 10_000


def test_the_optimizer_may_be_a_factory_and_hooks_are_gone_after_close() -> None:
    model = make_model()
    trainer = fl.Trainer.setup(model, lambda p: Adam(p, lr=1e-3), **QUIET)
    assert isinstance(trainer.optimizer, Adam)
    trainer.close()
    trainer.optimizer.step()
    assert trainer.global_step == 0
    assert not trainer.optimizer._optimizer_step_post_hooks


def test_means_of_a_loader_of_ones_own_are_weighted_by_samples_too() -> None:
    model = nn.Linear(1, 1)
    x = torch.arange(5.0)[:, None]
    with fl.Trainer.setup(model, torch.optim.SGD(model.parameters(), 0.0), **QUIET) as trainer:
        for _ in trainer.epochs(1):
            for (part,) in DataLoader(torch.utils.data.TensorDataset(x), batch_size=2):
                trainer.step(trainer.model(part).square().mean(), mean_x=part.mean())
    assert trainer.history[0]["mean_x"] == pytest.approx(2.0)


def test_a_module_in_evaluation_mode_stays_in_it() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4).eval())
    with fl.Trainer.setup(model, lambda p: Adam(p), **QUIET):
        assert (model.training, model[1].training) == (True, False)
    with fl.Trainer.setup(model.eval(), lambda p: Adam(p), **QUIET):
        assert model.training


def test_a_second_trainer_takes_the_optimizer_over() -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    first = fl.Trainer.setup(model, optimizer, **QUIET)
    second = fl.Trainer.setup(model, optimizer, **QUIET)
    model(torch.ones(1, 1)).sum().backward()
    optimizer.step()
    assert (first.global_step, second.global_step) == (0, 1)
    first.close()
    second.close()


def test_leaving_the_loop_saves_and_the_run_counts_as_stopped() -> None:
    with setup(record=True) as trainer:
        for _ in trainer.epochs(3):
            for x, y in trainer.batches():
                trainer.step(F.cross_entropy(trainer.model(x), y))
            break
    assert trainer.run.folder is not None
    assert fl.checkpoint.load(newest(trainer.run.folder)).extra["step"] == 23
    with fl.monitor.RunView(trainer.run.folder) as view:
        assert view.info().state == "stopped"


def test_a_lost_record_does_not_end_the_training(capsys: pytest.CaptureFixture[str]) -> None:
    with setup(record=True, checkpoint=False) as trainer:
        for epoch in trainer.epochs(2):
            for x, y in trainer.batches():
                trainer.step(F.cross_entropy(trainer.model(x), y))
            if epoch == 0:
                shutil.rmtree("runs")
    assert trainer.position.epoch == 2
    assert "warning: the record of this run is not complete" in capsys.readouterr().err
