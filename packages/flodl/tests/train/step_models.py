"""Twelve small models with their data, of every kind that a recipe may treat in its own way; what a recipe touches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch import optim as O
from torch.nn import functional as F

import flodl as fl
from flodl.train import machine


class Case(NamedTuple):
    model: nn.Module
    x: Tensor
    """(16 batches, batch, ...)"""
    y: Tensor
    loss: Callable[[Tensor, Tensor], Tensor] = F.mse_loss
    optimizer: Callable[[nn.Module], O.Optimizer] = lambda m: O.Adam(m.parameters(), 1e-3)

    def train_fn(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return self.loss(model(batch[0]), batch[1])

    def batch(self, number: int) -> tuple[Tensor, Tensor]:
        return self.x[number % 16], self.y[number % 16]


class Last(nn.Module):
    def __init__(self, layer: nn.Module, width: int) -> None:
        super().__init__()
        self.layer, self.out = layer, nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layer(x)[0][:, -1])


class Tied(nn.Module):
    """Embedding and output share a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(12, 8)
        self.mix = nn.Linear(8, 8)
        self.out = nn.Linear(8, 12, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.mix(self.embed(x)).tanh()).transpose(1, 2)


def _data(*shape: int, out: tuple[int, ...] = (4,)) -> tuple[Tensor, Tensor]:
    x = torch.randn(16, 8, *shape)
    return x, 0.5 * torch.randn(16, 8, *out)


def _tokens(length: int = 6) -> tuple[Tensor, Tensor]:
    x = torch.randint(12, (16, 8, length))
    return x, x.roll(-1, 2)


def _frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))
    model[0].requires_grad_(False)
    return model


def _flow_loop() -> nn.Module:
    body = fl.flow(nn.Linear(8, 8)).through(nn.Tanh())
    return fl.flow(nn.Linear(8, 8)).loop_body(body).for_n(3).through(nn.Linear(8, 4)).build()


def _gated() -> nn.Module:
    experts = [nn.Linear(8, 8) for _ in range(3)]
    return fl.flow(nn.Linear(8, 8)).gate(fl.SoftmaxRouter(8, 3), experts).through(nn.Linear(8, 4)).build()


def _conv() -> nn.Module:
    # no bias before a BatchNorm: its gradient is nothing but rounding, which an adaptive optimizer makes steps of
    head = (nn.Flatten(), nn.Linear(8 * 9, 4))
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), *head
    )


def _encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return Last2(nn.TransformerEncoder(layer, 1, enable_nested_tensor=False))


class Last2(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.out = layer, nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layer(x).mean(1))


def _sgd(model: nn.Module) -> O.Optimizer:
    return O.SGD(model.parameters(), 0.02, momentum=0.9, weight_decay=1e-3)


CASES: dict[str, Callable[[], Case]] = {
    "mlp": lambda: Case(nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4)), *_data(8)),
    "convolutions": lambda: Case(_conv(), *_data(3, 6, 6), optimizer=_sgd),
    "autoencoder": lambda: Case(
        nn.Sequential(nn.Conv2d(3, 8, 4, 2, 1), nn.Tanh(), nn.ConvTranspose2d(8, 3, 4, 2, 1)),
        *_data(3, 8, 8, out=(3, 8, 8)),
    ),
    "gru": lambda: Case(Last(nn.GRU(6, 8, batch_first=True), 8), *_data(4, 6)),
    "lstm": lambda: Case(Last(nn.LSTM(6, 8, batch_first=True), 8), *_data(4, 6)),
    "transformer": lambda: Case(
        _encoder(), *_data(5, 8), optimizer=_sgd
    ),  # the keys' bias has no gradient but rounding
    "tied": lambda: Case(Tied(), *_tokens(), loss=F.cross_entropy),
    "frozen": lambda: Case(
        _frozen(), *_data(8), optimizer=lambda m: O.AdamW([p for p in m.parameters() if p.requires_grad], 1e-3)
    ),
    "dropout": lambda: Case(nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.3), nn.Tanh(), nn.Linear(16, 4)), *_data(8)),
    "loop": lambda: Case(_flow_loop(), *_data(8), optimizer=lambda m: O.RMSprop(m.parameters(), 1e-3)),
    "gated": lambda: Case(_gated(), *_data(8), optimizer=lambda m: O.Adagrad(m.parameters(), 1e-2)),
    "residual": lambda: Case(
        fl.flow(nn.Linear(8, 8)).also(nn.Linear(8, 8)).through(nn.Linear(8, 4)).build(), *_data(8), optimizer=_sgd
    ),
}


def process_state() -> tuple[Any, ...]:
    """What recipes touch of the whole process."""
    import torch._dynamo.config
    import torch._functorch.config
    import torch._inductor.config

    configs = [c.get_config_copy() for c in (torch._dynamo.config, torch._inductor.config, torch._functorch.config)]
    precision = torch._C._get_fp32_precision_getter("mkldnn", "matmul")
    return (
        torch.get_num_threads(), torch.get_float32_matmul_precision(), precision, torch.is_grad_enabled(),
        torch.is_anomaly_enabled(), torch.is_autocast_enabled("cpu"), machine.Allocator._holders.copy(), configs,
    )  # fmt: skip
