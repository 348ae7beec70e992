"""`Graph.of` on models that are no flows: a ResNet written by hand and a transformers model."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import flodl as fl

transformers = pytest.importorskip("transformers")


class Block(nn.Module):
    def __init__(self, i: int, o: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o)
        self.conv2, self.norm2 = nn.Conv2d(o, o, 3, padding=1, bias=False), nn.BatchNorm2d(o)
        self.skip = nn.Identity() if i == o else nn.Conv2d(i, o, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(y)) + self.skip(x))


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.layer1 = nn.Sequential(Block(8, 8), Block(8, 8))
        self.layer2 = nn.Sequential(Block(8, 16), Block(16, 16))
        self.fc = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.layer2(self.layer1(self.stem(x))).mean((2, 3)))  # type: ignore[no-any-return]


def resnet() -> tuple[nn.Module, Callable[[], Tensor], list[str]]:
    model, x = ResNet(), torch.randn(2, 3, 8, 8)
    return model, lambda: model(x), ["layer1", "layer2.0.conv1", "fc"]


def bert() -> tuple[nn.Module, Callable[[], Tensor], list[str]]:
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
    )
    model = transformers.BertForSequenceClassification(config).eval()
    tokens = torch.randint(0, 50, (2, 7))
    return model, lambda: model(tokens).logits, ["bert.encoder", "bert.encoder.layer.0.attention", "classifier"]


MODELS = pytest.mark.parametrize("make", [resnet, bert])


def hooks(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


@MODELS
def test_observation_without_a_change_to_the_module(
    make: Callable[[], tuple[nn.Module, Callable[[], Tensor], list[str]]],
) -> None:
    model, run, names = make()
    keys, before = list(model.__dict__), {k: v.clone() for k, v in model.state_dict().items()}
    view = fl.Graph.of(model)
    hooked = hooks(model)
    view.collect(*names)
    view.observe(names[-1])
    model.eval()
    outputs = [run() for _ in range(3)]
    view.record("loss", 1.5)
    view.record(f"{names[-1]}.loss", 2.5)
    assert hooks(model) == hooked + len(names)
    assert torch.equal(view.tagged(names[-1]), outputs[-1])
    means = view.flush()
    assert set(means) == {*names, "loss", f"{names[-1]}.loss"}
    assert means[names[-1]] == pytest.approx(outputs[0].mean().item(), rel=1e-5)
    assert view.trend(names[0]).values == [means[names[0]]]
    view.release()
    assert hooks(model) == hooked
    assert list(model.__dict__) == keys
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


@MODELS
def test_tree_of_any_module(make: Callable[[], tuple[nn.Module, Callable[[], Tensor], list[str]]]) -> None:
    model, run, names = make()
    view = fl.Graph.of(model)
    assert view.validate_path(names[1]) == "module"
    with pytest.raises(fl.FlowError, match=f"Did you mean '{names[0].split('.')[0]}'"):
        view.subgraph(names[0].split(".")[0] + "s")
    part = view.subgraph(names[0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    run().square().sum().backward()
    optimizer.step()
    view.freeze(names[0])
    before = copy.deepcopy([*view.parameters_at(names[0])])
    model.zero_grad()
    run().square().sum().backward()
    optimizer.step()
    assert view.is_frozen(names[0])
    assert all(torch.equal(a, b) for a, b in zip(before, part.parameters(), strict=True))
    view.thaw(names[0])
    assert not view.is_frozen(names[0])
    view.set_training_at(names[0], True)
    assert part.training
    assert (
        view.structural_hash()
        == fl.Graph.of(make()[0]).structural_hash()
        == fl.Graph.of(copy.deepcopy(model)).structural_hash()
    )
    assert f"{sum(p.numel() for p in model.parameters()):,}" in view.param_summary()
    assert names[-1] in view.tree_summary()
    # a checkpoint of one part
    buffer = io.BytesIO()
    torch.save(part.state_dict(), buffer)
    buffer.seek(0)
    fl.Graph.of(make()[0]).subgraph(names[0]).load_state_dict(torch.load(buffer))


def test_a_flow_among_the_parts_keeps_its_tags() -> None:
    head = fl.flow(nn.Linear(16, 4)).tag("h").through(nn.ReLU()).build()
    model = ResNet()
    model.fc = head  # type: ignore[assignment]
    view = fl.Graph.of(model)
    view.collect("fc.h")
    model(torch.randn(2, 3, 8, 8))
    assert set(view.flush()) == {"fc.h"}
    assert view.trend("fc.h") is head.trend("h")
    assert fl.Graph.of(head) is head
