"""Ten models, each written by hand and as a flow over the same modules, so that both do the same arithmetic."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

import flodl as fl

__all__ = ["PAIRS", "Pair"]


class Pair(NamedTuple):
    """The same model twice, and an input."""

    by_hand: nn.Module
    flow: fl.Graph
    x: Tensor


class Written(nn.Module):
    """A forward written by hand over modules that are given as keyword arguments."""

    def __init__(self, forward: Callable[[nn.Module, Tensor], Tensor], **parts: nn.Module) -> None:
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)
        # On the class, where a written forward is.
        self.__class__ = type("Written", (Written,), {"forward": forward})


def mlp() -> Pair:
    d = 512
    first, last = nn.Linear(256, d), nn.Linear(d, 256)
    hidden = [(nn.GELU(), nn.LayerNorm(d), nn.Linear(d, d)) for _ in range(3)]
    act, norm = nn.GELU(), nn.LayerNorm(d)
    flow = fl.flow(first).tag("entry")
    for i, block in enumerate(hidden):
        for part in block:
            flow.through(part)
        flow.tag(f"hidden_{i}")
    flow.through(act).through(norm).through(last).tag("out")

    def forward(self: nn.Module, x: Tensor) -> Tensor:
        x = self.first(x)
        x = self.linear0(self.norm0(self.act0(x)))
        x = self.linear1(self.norm1(self.act1(x)))
        x = self.linear2(self.norm2(self.act2(x)))
        return self.last(self.norm(self.act(x)))

    parts = {
        f"{name}{i}": part
        for i, b in enumerate(hidden)
        for name, part in zip(("act", "norm", "linear"), b, strict=True)
    }
    return Pair(
        Written(forward, first=first, last=last, act=act, norm=norm, **parts), flow.build(), torch.randn(64, 256)
    )


def convnet() -> Pair:
    sizes = [3, 16, 32, 64, 64]
    blocks = [
        nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU(), nn.MaxPool2d(2))
        for i, o in itertools.pairwise(sizes)
    ]
    head = nn.Sequential(nn.Flatten(), nn.Linear(64 * 4, 128), nn.ReLU(), nn.Linear(128, 10))
    flow = fl.flow(blocks[0])
    for i, block in enumerate(blocks[1:]):
        flow.through(block).tag(f"block_{i}")
    flow.through(head).tag("logits")

    def forward(self: nn.Module, x: Tensor) -> Tensor:
        return self.head(self.b3(self.b2(self.b1(self.b0(x)))))

    parts = {f"b{i}": b for i, b in enumerate(blocks)}
    return Pair(Written(forward, head=head, **parts), flow.build(), torch.randn(16, 3, 32, 32))


def last_output(y: tuple[Tensor, Tensor]) -> Tensor:
    return y[0][:, -1]


def gru_seq() -> Pair:
    gru, out = nn.GRU(32, 64, batch_first=True), nn.Linear(64, 8)
    flow = fl.flow(gru).through(last_output).tag("last").through(out).tag("out").build()
    return Pair(
        Written(lambda self, x: self.out(last_output(self.gru(x))), gru=gru, out=out), flow, torch.randn(16, 50, 32)
    )


def lstm_seq() -> Pair:
    lstm, out = nn.LSTM(32, 64, num_layers=2, batch_first=True), nn.Linear(64, 8)
    flow = fl.flow(lstm).through(last_output).tag("last").through(out).tag("out").build()
    return Pair(
        Written(lambda self, x: self.out(last_output(self.lstm(x))), lstm=lstm, out=out), flow, torch.randn(16, 25, 32)
    )


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(width), nn.MultiheadAttention(width, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return self.attention(y, y, y, need_weights=False)[0]


def transformer() -> Pair:
    d = 128
    attend = [Attention(d) for _ in range(4)]
    feed = [nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d)) for _ in range(4)]
    first, last = nn.Linear(64, d), nn.Linear(d, 64)
    flow = fl.flow(first)
    for i, (a, f) in enumerate(zip(attend, feed, strict=True)):
        flow.also(a).also(f).tag(f"layer_{i}")
    flow.through(last).tag("out")

    def forward(self: nn.Module, x: Tensor) -> Tensor:
        x = self.first(x)
        x = x + self.a0(x)
        x = x + self.f0(x)
        x = x + self.a1(x)
        x = x + self.f1(x)
        x = x + self.a2(x)
        x = x + self.f2(x)
        x = x + self.a3(x)
        x = x + self.f3(x)
        return self.last(x)

    parts = {f"a{i}": a for i, a in enumerate(attend)} | {f"f{i}": f for i, f in enumerate(feed)}
    return Pair(Written(forward, first=first, last=last, **parts), flow.build(), torch.randn(4, 32, 64))


def conv_autoenc() -> Pair:
    down = [nn.Conv2d(3, 16, 4, 2, 1), nn.Conv2d(16, 32, 4, 2, 1)]
    up = [nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.ConvTranspose2d(16, 3, 4, 2, 1)]
    acts = [nn.ReLU() for _ in range(3)]
    encoder = fl.flow(down[0]).through(acts[0]).through(down[1]).through(acts[1]).tag("latent").label("encoder")
    decoder = fl.flow(up[0]).through(acts[2]).through(up[1]).label("decoder")
    by_hand = nn.Sequential(nn.Sequential(down[0], acts[0], down[1], acts[1]), nn.Sequential(up[0], acts[2], up[1]))
    return Pair(by_hand, fl.flow(encoder).through(decoder).tag("out").build(), torch.randn(16, 3, 32, 32))


def residual_tower() -> Pair:
    d = 256
    blocks = [nn.Sequential(nn.Linear(d, d), nn.GELU(), nn.LayerNorm(d)) for _ in range(12)]
    flow = fl.flow(nn.Identity())
    for i, block in enumerate(blocks):
        flow.also(block).tag(f"block_{i}")

    def forward(self: nn.Module, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x

    return Pair(Written(forward, blocks=nn.ModuleList(blocks)), flow.build(), torch.randn(32, d))


def gated_routing() -> Pair:
    d = 256
    first, act, last = nn.Linear(d, d), nn.GELU(), nn.Linear(d, d)
    experts = [nn.Sequential(nn.Linear(d, d), nn.GELU(), nn.LayerNorm(d)) for _ in range(8)]
    router = fl.SoftmaxRouter(d, 8)
    flow = fl.flow(first).through(act).tag("h").gate(router, experts).tag("mixed").through(last)

    def forward(self: nn.Module, x: Tensor) -> Tensor:
        x = self.act(self.first(x))
        weights = torch.softmax(self.router(x), dim=-1)
        outputs = torch.stack([expert(x) for expert in self.experts], dim=1)
        return self.last((weights.unsqueeze(1) @ outputs).squeeze(1))

    parts = {"first": first, "act": act, "last": last, "router": router.linear, "experts": nn.ModuleList(experts)}
    return Pair(Written(forward, **parts), flow.build(), torch.randn(32, d))


def iterative_refine() -> Pair:
    d = 256
    first, last = nn.Linear(d, d), nn.Linear(d, d)
    body = nn.Sequential(nn.Linear(d, d), nn.GELU(), nn.LayerNorm(d))
    flow = fl.flow(first).tag("latent").loop_body(body).for_n(8).tag("refined").through(last)

    def forward(self: nn.Module, x: Tensor) -> Tensor:
        x = self.first(x)
        for _ in range(8):
            x = self.body(x)
        return self.last(x)

    return Pair(Written(forward, first=first, last=last, body=body), flow.build(), torch.randn(64, d))


def feedback_fixed() -> Pair:
    d = 256
    first, last = nn.Linear(d, d), nn.Linear(d, d)
    linear, act, norm = nn.Linear(d, d), nn.Tanh(), nn.LayerNorm(d)
    body = fl.flow(linear).through(act).also(norm).tag("state")
    flow = fl.flow(first).loop_body(body).for_n(10).through(last).tag("out")

    def forward(self: nn.Module, x: Tensor) -> Tensor:
        x = self.first(x)
        for _ in range(10):
            x = self.act(self.linear(x))
            x = x + self.norm(x)
        return self.last(x)

    return Pair(
        Written(forward, first=first, last=last, linear=linear, act=act, norm=norm), flow.build(), torch.randn(128, d)
    )


PAIRS: dict[str, Callable[[], Pair]] = {
    f.__name__: f
    for f in (
        mlp, convnet, gru_seq, transformer, lstm_seq, conv_autoenc, residual_tower, gated_routing, iterative_refine,
        feedback_fixed,
    )
}  # fmt: skip
