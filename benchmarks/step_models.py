"""The models of the step benchmark: ten of the original's suite at its sizes, and five small ones that dispatch binds."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch import optim as O
from torch.nn import functional as F

import flodl as fl

__all__ = ["SMALL", "TEN", "Task"]


class Task(NamedTuple):
    """What one step is made of. `loss(output, target)`."""

    model: nn.Module
    x: Tensor
    y: Tensor
    loss: Callable[[Tensor, Tensor], Tensor] = F.mse_loss
    optimizer: Callable[[nn.Module], O.Optimizer] = lambda model: O.Adam(model.parameters(), lr=1e-3)


class LastStep(nn.Module):
    """A recurrent layer, its last step, a projection: (batch, steps, features) -> (batch, outputs)."""

    def __init__(self, layer: nn.Module, width: int, outputs: int) -> None:
        super().__init__()
        self.layer, self.out = layer, nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layer(x)[0][:, -1])


class Tokens(nn.Module):
    """Embedding, encoder, a class per token: (batch, tokens) -> (batch, classes, tokens)."""

    def __init__(self, classes: int, width: int, heads: int, layers: int, hidden: int, tokens: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(classes, width)
        self.place = nn.Parameter(torch.zeros(tokens, width))
        layer = nn.TransformerEncoderLayer(width, heads, hidden, dropout=0.0, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.encoder(self.embed(x) + self.place)).transpose(1, 2)


def block(width: int) -> fl.FlowBuilder:
    return fl.flow(nn.LayerNorm(width)).through(nn.Linear(width, width)).through(nn.GELU())


def mlp() -> Task:
    flow = fl.flow(nn.Linear(1024, 2048))
    for _ in range(3):
        flow.through(nn.GELU()).through(nn.LayerNorm(2048)).through(nn.Linear(2048, 2048))
    flow.through(nn.GELU()).through(nn.LayerNorm(2048)).through(nn.Linear(2048, 1024))
    return Task(flow.build(), torch.randn(256, 1024), torch.randn(256, 1024))


def convnet() -> Task:
    flow, channels = fl.flow(nn.Identity()), 3
    for width in (64, 128, 256, 512):
        flow.through(nn.Conv2d(channels, width, 3, padding=1)).through(nn.BatchNorm2d(width))
        flow.through(nn.ReLU()).through(nn.MaxPool2d(2))
        channels = width
    flow.through(nn.Flatten()).through(nn.Linear(512 * 4, 1024)).through(nn.ReLU()).through(nn.Linear(1024, 10))
    return Task(flow.build(), torch.randn(128, 3, 32, 32), torch.randn(128, 10))


def gru_seq() -> Task:
    return Task(
        LastStep(nn.GRU(256, 512, batch_first=True), 512, 256), torch.randn(128, 50, 256), torch.randn(128, 256)
    )


def transformer() -> Task:
    model = Tokens(classes=8192, width=512, heads=8, layers=4, hidden=2048, tokens=64)
    x = torch.randint(8192, (32, 64))
    return Task(model, x, x.roll(-1, 1), F.cross_entropy)


def lstm_seq() -> Task:
    layer = nn.LSTM(256, 384, num_layers=2, batch_first=True)
    return Task(LastStep(layer, 384, 256), torch.randn(128, 50, 256), torch.randn(128, 256))


def conv_autoenc() -> Task:
    flow = fl.flow(nn.Conv2d(3, 64, 4, stride=2, padding=1)).through(nn.ReLU())
    flow.through(nn.Conv2d(64, 128, 4, stride=2, padding=1)).through(nn.ReLU())
    flow.through(nn.Conv2d(128, 256, 4, stride=2, padding=1)).through(nn.ReLU())
    flow.through(nn.ConvTranspose2d(256, 128, 4, stride=2, padding=1)).through(nn.ReLU())
    flow.through(nn.ConvTranspose2d(128, 64, 4, stride=2, padding=1)).through(nn.ReLU())
    flow.through(nn.ConvTranspose2d(64, 3, 4, stride=2, padding=1))
    x = torch.randn(64, 3, 64, 64)
    return Task(flow.build(), x, x)


def residual_tower() -> Task:
    flow = fl.flow(nn.Linear(512, 512))
    for _ in range(12):
        flow.also(block(512).through(nn.Linear(512, 512)).through(nn.LayerNorm(512)).through(nn.Linear(512, 512)))
    return Task(flow.build(), torch.randn(256, 512), torch.randn(256, 512))


def gated_routing() -> Task:
    experts = [nn.Sequential(nn.Linear(512, 512), nn.GELU(), nn.LayerNorm(512)) for _ in range(8)]
    flow = fl.flow(nn.Linear(512, 512)).through(nn.GELU()).gate(fl.SoftmaxRouter(512, 8), experts)
    return Task(flow.through(nn.Linear(512, 512)).build(), torch.randn(256, 512), torch.randn(256, 512))


def iterative_refine(width: int = 1024, batch: int = 256) -> Task:
    body = fl.flow(nn.Identity()).also(block(width))
    flow = fl.flow(nn.Linear(width, width)).loop_body(body).for_n(8).through(nn.Linear(width, width))
    return Task(flow.build(), torch.randn(batch, width), torch.randn(batch, width))


def feedback_fixed() -> Task:
    body = fl.flow(nn.Linear(512, 512)).through(nn.Tanh())
    flow = fl.flow(nn.Linear(512, 512)).through(nn.GELU()).loop_body(body).for_n(10).through(nn.Linear(512, 512))
    return Task(flow.build(), torch.randn(128, 512), torch.randn(128, 512))


def small_mlp() -> Task:
    flow = fl.flow(nn.Linear(64, 64)).through(nn.ReLU()).through(nn.Linear(64, 64)).through(nn.ReLU())
    return Task(flow.through(nn.Linear(64, 10)).build(), torch.randn(32, 64), torch.randint(10, (32,)), F.cross_entropy)


def small_loop() -> Task:
    return iterative_refine(width=64, batch=32)


def small_gru() -> Task:
    return Task(LastStep(nn.GRU(32, 32, batch_first=True), 32, 32), torch.randn(32, 16, 32), torch.randn(32, 32))


def small_encoder() -> Task:
    x = torch.randint(64, (16, 16))
    return Task(Tokens(64, 64, heads=4, layers=2, hidden=256, tokens=16), x, x.roll(-1, 1), F.cross_entropy)


def resnet20() -> Task:
    """He et al. 2015 (arXiv 1512.03385), section 4.2, for 32x32 images: 0.27 M parameters."""

    def conv(i: int, o: int, stride: int = 1) -> nn.Module:
        return nn.Sequential(nn.Conv2d(i, o, 3, stride=stride, padding=1, bias=False), nn.BatchNorm2d(o))

    flow, channels = fl.flow(conv(3, 16)).through(nn.ReLU()), 16
    for width in (16, 32, 64):
        for number in range(3):
            stride = 2 if width > 16 and number == 0 else 1
            main = fl.flow(conv(channels, width, stride)).through(nn.ReLU()).through(conv(width, width))
            if stride == 1:
                flow.also(main)
            else:
                skip = nn.Sequential(nn.Conv2d(channels, width, 1, stride=2, bias=False), nn.BatchNorm2d(width))
                flow.also_with(skip, main)
            flow.through(nn.ReLU())
            channels = width
    flow.through(nn.AdaptiveAvgPool2d(1)).through(nn.Flatten()).through(nn.Linear(64, 10))
    sgd = lambda model: O.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)  # noqa: E731
    return Task(flow.build(), torch.randn(64, 3, 32, 32), torch.randint(10, (64,)), F.cross_entropy, sgd)


TEN = {
    f.__name__: f
    for f in (
        mlp, convnet, gru_seq, transformer, lstm_seq,
        conv_autoenc, residual_tower, gated_routing, iterative_refine, feedback_fixed,
    )
}  # fmt: skip
SMALL = {f.__name__: f for f in (small_mlp, small_loop, small_gru, small_encoder, resnet20)}
