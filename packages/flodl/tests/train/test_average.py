"""Averages against float64 formulas, torch's own AveragedModel and update_bn."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, SparseAdam
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, get_swa_multi_avg_fn, update_bn

import flodl as fl
from flodl.train.average import Average, Ema, Swa, update_batch_norm


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3))


def trained(model: nn.Module, steps: int = 5) -> Iterator[None]:
    optimizer = Adam([p for p in model.parameters() if p.requires_grad], lr=0.05)
    torch.manual_seed(1)
    for _ in range(steps):
        x, y = torch.randn(16, 8), torch.randint(3, (16,))
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        yield


def floats(model: nn.Module) -> dict[str, Tensor]:
    return {k: v.detach().double().clone() for k, v in model.state_dict().items() if v.is_floating_point()}


@pytest.mark.parametrize("warmup", [False, True])
def test_ema_is_the_formula_in_float64(warmup: bool) -> None:
    model = make_model()
    ema = Ema(model, 0.9, warmup=warmup)
    expected = floats(model)
    for n, _ in enumerate(trained(model)):
        ema.update()
        decay = min(0.9, (1 + n) / (10 + n)) if warmup else 0.9
        expected = {k: decay * expected[k] + (1 - decay) * v for k, v in floats(model).items()}
    assert ema.updates == 5
    assert ema.shadow.keys() == expected.keys()  # parameters, running mean and variance
    for name, value in ema.shadow.items():
        torch.testing.assert_close(value.double(), expected[name], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kind", ["ema", "swa"])
def test_the_bits_are_those_of_torchs_averaged_model(kind: str) -> None:
    model = make_model()
    average: Average = Ema(model, 0.9) if kind == "ema" else Swa(model)
    theirs = AveragedModel(
        model, multi_avg_fn=get_ema_multi_avg_fn(0.9) if kind == "ema" else get_swa_multi_avg_fn(), use_buffers=False
    )
    if kind == "ema":
        theirs.update_parameters(model)  # torch copies the first time; an Ema begins with what it was made from
    for _ in trained(model):
        average.update()
        theirs.update_parameters(model)
    for name, parameter in theirs.module.named_parameters():
        assert torch.equal(average.shadow[name], parameter), name


def test_swa_is_the_mean_of_what_was_seen() -> None:
    model = make_model()
    swa, seen = Swa(model), []
    for _ in trained(model):
        swa.update()
        seen.append(floats(model))
    for name, value in swa.shadow.items():
        torch.testing.assert_close(value.double(), sum(s[name] for s in seen) / 5, rtol=1e-6, atol=1e-7)


def test_applied_puts_the_average_in_and_the_model_back_also_after_an_error() -> None:
    model = make_model()
    ema = Ema(model, 0.5)
    for _ in trained(model):
        ema.update()
    before = copy.deepcopy(model.state_dict())
    addresses = [p.data_ptr() for p in model.parameters()]
    with pytest.raises(KeyError), ema.applied():
        assert all(torch.equal(value, model.state_dict()[name]) for name, value in ema.shadow.items())
        with pytest.raises(fl.TrainingError, match="average the average"):
            ema.update()
        with pytest.raises(fl.TrainingError, match="not to be nested"), ema.applied():
            pass
        raise KeyError
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [p.data_ptr() for p in model.parameters()] == addresses  # the optimizer's, and a compiled graph's
    ema.update()


def test_tied_frozen_and_sparse() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(20, 4, sparse=True)
            self.frozen = nn.Linear(4, 4).requires_grad_(False)
            self.out = nn.Linear(4, 20, bias=False)
            self.register_buffer("mask", torch.full((3,), -torch.inf))  # would be NaN as an average
            self.other = nn.Embedding(20, 4, sparse=True)
            self.other.weight = self.embedding.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.other(x) + self.frozen(self.embedding(x))  # type: ignore[no-any-return]

    model = Tied()
    ema = Ema(model, 0.75)
    assert sorted(ema.shadow) == ["embedding.weight", "out.weight"]
    expected = model.embedding.weight.detach().double().clone()
    optimizer = SparseAdam([model.embedding.weight], lr=0.1)
    for i in range(4):
        optimizer.zero_grad()
        model(torch.tensor([i, i + 1])).square().sum().backward()
        optimizer.step()
        ema.update()
        expected = 0.75 * expected + 0.25 * model.embedding.weight.detach().double()
    torch.testing.assert_close(ema.shadow["embedding.weight"].double(), expected, rtol=1e-6, atol=1e-7)
    with ema.applied():
        assert torch.equal(model.other.weight, ema.shadow["embedding.weight"])
    frozen = model.frozen.weight.detach().clone()
    model.frozen.requires_grad_(True)
    ema.update()
    assert torch.equal(ema.shadow["frozen.weight"], frozen)
    assert {"frozen.weight", "frozen.bias"} < ema.shadow.keys()


def test_bfloat16_is_averaged_in_float32() -> None:
    model = nn.Linear(4, 4).bfloat16()
    ema = Ema(model, 0.999)
    with torch.no_grad():
        model.weight.fill_(1.0)
    ema.shadow["weight"].zero_()
    for _ in range(100):
        ema.update()
    torch.testing.assert_close(ema.shadow["weight"], torch.full((4, 4), 1 - 0.999**100), rtol=1e-4, atol=0)
    with ema.applied():
        assert model.weight.dtype == torch.bfloat16
        assert torch.equal(model.weight, ema.shadow["weight"].bfloat16())


def test_a_model_that_is_moved_or_compiled_is_followed_under_the_same_names() -> None:
    model = make_model()
    plain = Ema(model, 0.5)
    model[1] = torch.compile(model[1], backend="eager")  # type: ignore[assignment]
    wrapped = Ema(torch.compile(model, backend="eager"), 0.5)  # type: ignore[arg-type]
    assert wrapped.shadow.keys() == plain.shadow.keys()
    model = make_model()
    ema = Ema(model, 0.5)
    model[1].running_mean = torch.full((6,), 2.0)  # replaced, as `model.to(...)` does
    ema.update()
    assert torch.equal(ema.shadow["1.running_mean"], torch.ones(6))


def test_the_state_goes_through_a_file_and_on_to_the_same_bits(tmp_path: object) -> None:
    model = make_model()
    ema = Ema(model, 0.9, warmup=True)
    steps = trained(model, 6)
    for _ in range(3):
        next(steps)
        ema.update()
    torch.save(ema.state_dict(), f"{tmp_path}/ema")
    other = Ema(model, 0.9, warmup=True)
    kept = [t.data_ptr() for t in other.shadow.values()]
    other.load_state_dict(torch.load(f"{tmp_path}/ema", weights_only=True))
    for _ in steps:
        ema.update()
        other.update()
    assert all(torch.equal(value, other.shadow[name]) for name, value in ema.shadow.items())
    assert [t.data_ptr() for t in other.shadow.values()] == kept


def test_a_state_of_another_model_changes_nothing() -> None:
    ema = Ema(make_model(), 0.9)
    before = copy.deepcopy(ema.state_dict())
    state = ema.state_dict()
    shadow = {name: value + 1 for name, value in state["shadow"].items()}
    for wrong, message in [
        ({**shadow, "0.wight": torch.zeros(1)}, "no '0.wight' to be averaged. Did you mean '0.weight'"),
        ({**shadow, "0.weight": torch.zeros(2, 8)}, r"'0.weight' has shape \(2, 8\), the model's is \(6, 8\)"),
        ({k: v for k, v in shadow.items() if k != "0.bias"}, "lack '0.bias'"),
    ]:
        with pytest.raises(fl.CheckpointError, match=message):
            ema.load_state_dict({"updates": 7, "shadow": wrong})
    assert ema.updates == 0
    assert all(torch.equal(value, before["shadow"][name]) for name, value in ema.shadow.items())


def test_what_cannot_be_averaged_is_refused() -> None:
    with pytest.raises(fl.ConfigError, match=r"decay of an average is 1\.5"):
        Ema(make_model(), 1.5)
    with torch.device("meta"), pytest.raises(fl.TrainingError, match="'weight' is on the meta device"):
        Ema(nn.Linear(2, 2), 0.5)


def images(sizes: list[int]) -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(2)
    return [(torch.randn(n, 3, 4, 4) * (i + 1) + i, torch.zeros(n)) for i, n in enumerate(sizes)]


def convolutions(momentum: float | None = 0.1) -> nn.Sequential:
    torch.manual_seed(0)
    first, second = nn.BatchNorm2d(5, momentum=momentum), nn.BatchNorm2d(4, momentum=0.3)
    return nn.Sequential(nn.Conv2d(3, 5, 3), first, nn.ReLU(), nn.Conv2d(5, 4, 1), second)


@pytest.mark.parametrize("momentum", [0.1, None])
def test_statistics_of_equal_batches_are_those_of_torchs_update_bn(momentum: float | None) -> None:
    ours, theirs = convolutions(momentum), convolutions(momentum)
    ours(images([8])[0][0] + 5)  # statistics to be forgotten
    ours[4].eval()
    ours.training = theirs.training = True
    batches = images([6, 6, 6])
    ours[4].train()
    update_batch_norm(ours, batches)
    update_bn(batches, theirs)
    for name, value in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], value, rtol=1e-5, atol=1e-6)
    assert (ours[1].momentum, ours[4].momentum) == (momentum, 0.3)
    assert ours[1].num_batches_tracked == 3


def test_a_short_batch_counts_for_its_samples() -> None:
    model = nn.Sequential(nn.BatchNorm1d(3))
    batches = [b[:, :, 0, 0] for b, _ in images([8, 8, 2])]
    update_batch_norm(model, batches)
    mean = sum(b.double().mean(0) * len(b) for b in batches) / 18
    variance = sum(b.double().var(0) * len(b) for b in batches) / 18
    torch.testing.assert_close(model[0].running_mean.double(), mean, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(model[0].running_var.double(), variance, rtol=1e-6, atol=1e-7)


def test_modes_momenta_and_random_numbers_are_as_before() -> None:
    model = nn.Sequential(
        nn.Dropout(0.5), nn.BatchNorm1d(3), nn.BatchNorm1d(3), nn.BatchNorm1d(3, track_running_stats=False)
    )
    unused = nn.BatchNorm1d(3)
    model[0].unused = unused
    model[2].eval()  # on purpose
    modes, state = [m.training for m in model.modules()], torch.get_rng_state()
    update_batch_norm(model, [torch.full((4, 3), 3.0) * torch.arange(4.0)[:, None]])
    assert [m.training for m in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), state)  # no dropout
    assert torch.equal(model[1].running_mean, torch.full((3,), 4.5))
    for untouched in (model[2], unused):
        assert torch.equal(untouched.running_mean, torch.zeros(3))
        assert untouched.num_batches_tracked == 0
    model.eval()
    update_batch_norm(model, {"a": 1}, forward=lambda m, _: m(torch.arange(12.0).view(4, 3)))
    assert model[2].num_batches_tracked == 1  # the whole model is in evaluation mode: so is this layer, by chance
    assert not any(m.training for m in model.modules())


def test_after_an_error_the_statistics_are_the_former_ones() -> None:
    model = convolutions()
    model(images([8])[0][0])
    before, modes = copy.deepcopy(model.state_dict()), [m.training for m in model.modules()]
    with pytest.raises(fl.DataError, match="no batch"):
        update_batch_norm(model, [])
    with pytest.raises(RuntimeError):
        update_batch_norm(model, [*images([8]), (torch.zeros(2, 9, 4, 4), 0)])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert (model[1].momentum, [m.training for m in model.modules()]) == (0.1, modes)
    assert not model[1]._forward_pre_hooks


def test_the_recipe_of_swa_improves_on_the_last_weights() -> None:
    """On noisy steps, around a minimum that is known: the average of the weights is nearer than the last."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1, bias=False)
    target = torch.tensor([[1.0, -2.0, 3.0, 0.5]])
    optimizer, swa = SGD(model.parameters(), lr=0.1), Swa(model)
    for step in range(400):
        x = torch.randn(8, 4)
        optimizer.zero_grad()
        F.mse_loss(model(x), x @ target.T + torch.randn(8, 1)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if step >= 100:
            swa.update()
    last = (model.weight - target).norm()
    with swa.applied():
        assert (model.weight - target).norm() < 0.5 * last
