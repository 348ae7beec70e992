"""Every construct of the flow language in one model, trained on real images, watched and drawn."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import flodl as fl

WIDTH = 48


def block() -> fl.FlowBuilder:
    """What a residual step adds: (batch, WIDTH) -> the same."""
    return fl.flow(nn.LayerNorm(WIDTH)).through(nn.Linear(WIDTH, WIDTH)).through(nn.GELU())


def drop_pixels(x: Tensor, keep: Tensor) -> Tensor:
    """x, keep: (batch, 64)"""
    return x * keep


def batch_mean(x: Tensor) -> Tensor:
    """x: (batch, features) -> (1, features)"""
    return x.mean(0, keepdim=True)


def centred(x: Tensor, context: Tensor) -> Tensor:
    """Move towards what the batch before looked like; context: (1, features), zeros at first."""
    return x - 0.1 * context


def small(x: Tensor) -> Tensor:
    """x: (batch, features) -> (batch,) of booleans"""
    return x.norm(dim=1) < 7.0


def add_features(x: Tensor, features: Tensor) -> Tensor:
    """x, features: (batch, WIDTH)"""
    return x + features


def sharpened(x: Tensor, certainty: Tensor) -> Tensor:
    """x: (batch, classes), certainty: (batch, 1)"""
    return x * (0.5 + torch.sigmoid(certainty))


def model() -> fl.Graph:
    """(batch, 64) pixels, (batch, 64) mask -> (batch, 10)"""
    encoder = (
        fl.flow(nn.Linear(64, WIDTH))
        .internal("pixels")  # a name for this flow only
        .through(nn.GELU())
        .also(block())  # x + block(x)
        .label("encoder")
    )
    refine = fl.flow(nn.LayerNorm(WIDTH)).through(nn.Linear(WIDTH, WIDTH)).through(torch.tanh).tag("quality")
    return (
        fl.flow(drop_pixels).input("keep").using("keep")  # a second input
        .through(encoder).tag("features")
        .through(centred).using("context")  # a later tag: the value of the call before
        .fork(batch_mean).tag("context")  # a side branch
        .also_with(nn.Linear(WIDTH, WIDTH), block())  # a residual with a projection
        .fork(nn.Linear(WIDTH, 1)).tag("certainty")
        .loop_body(refine).for_n(3).tag("refined")  # a fixed loop
        .loop_body(fl.flow(nn.Linear(WIDTH, WIDTH)).through(nn.GELU()))
        .until_cond(fl.LearnedHalt(WIDTH), 4).tag("pondered")  # how long each sample takes is learned
        .loop_body(lambda x: 1.5 * x).while_cond(small, 8, per_sample=True)  # each sample by itself
        .gate(fl.SoftmaxRouter(WIDTH, 3), [block() for _ in range(3)]).tag("mixed")  # all experts, weighted
        .switch(fl.ArgmaxSelector(WIDTH, 2), [block(), nn.Identity()], per_sample=True)  # one for each sample
        .map(nn.Linear(12, 12)).slices(4).batched()  # the same layer on four slices
        .through(add_features).using("features")  # a long skip
        .split([nn.Linear(WIDTH, 10), nn.Linear(WIDTH, 10)]).tag_group("head").merge("mean")
        .through(sharpened).using("certainty").tag("logits")
        .label("showcase")
        .build(example=(torch.zeros(2, 64), torch.ones(2, 64)))  # checks the shapes
    )  # fmt: skip


def accuracy(net: fl.Graph, images: Tensor, labels: Tensor) -> float:
    """Share of right answers."""
    net.eval()
    with torch.no_grad():
        out = net(images, torch.ones_like(images))
    net.train()
    return (out.argmax(1) == labels).float().mean().item()


def train(epochs: int, seed: int) -> fl.Graph:
    torch.manual_seed(seed)
    torch.set_num_threads(1)  # steps this small are fastest on one thread
    (images, labels), (held_out, truth) = (fl.data.Digits(s)[:] for s in ("train", "test"))
    net = model()
    net.observe("quality")
    net.collect("head", "encoder")
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.01)
    for epoch in range(epochs):
        for batch in torch.randperm(len(images)).split(64):
            x = images[batch]
            keep = (torch.rand_like(x) > 0.1).float()
            loss = F.cross_entropy(net(x, keep), labels[batch])
            halt = net.subgraph("pondered.condition")
            assert isinstance(halt, fl.LearnedHalt)
            assert halt.ponder_cost is not None
            optimizer.zero_grad()
            (loss + 0.01 * halt.ponder_cost.mean()).backward()
            optimizer.step()
            net.detach_state()
            net.record("loss", loss)
            net.record("steps", halt.ponder_cost)
        means = net.flush()
        change = [round(q.norm(dim=1).mean().item(), 2) for q in net.traces("quality")]
        print(
            f"epoch {epoch + 1:2}  loss {means['loss']:.4f}  ponder cost {means['steps']:.2f}  "
            f"quality by iteration {change}  test accuracy {accuracy(net, held_out, truth):.4f}"
        )
        net.flush()  # what the test showed to the records
        if epoch > 8 and not net.is_frozen("encoder") and net.trend("loss").slope(4) > -0.01:
            net.freeze("encoder")
            print("          the loss falls slowly now: the encoder is frozen")
    print(f"\ntrend of the loss over the last 5 epochs: {net.trend('loss').slope(5):+.4f} an epoch")
    print(f"the heads: {net.trends('head').slopes(5)}")
    print(f"structure {net.structural_hash()[:16]}")
    print(f"test accuracy {accuracy(net, held_out, truth):.4f} on {len(truth)} held-out images")
    return net


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=15, help="passes over the training images")
    parser.add_argument("--seed", type=int, default=0, help="of the first weights and the order of the images")
    parser.add_argument("--out", type=Path, default=Path("."), help="where to write showcase.svg and showcase-heat.svg")
    options = parser.parse_args()
    started = time.perf_counter()
    net = train(options.epochs, options.seed)
    print(f"trained in {time.perf_counter() - started:.1f} s\n\n{net.code}\n{net.tree_summary(depth=1)}")
    options.out.mkdir(parents=True, exist_ok=True)
    net.release()
    net.svg(options.out / "showcase.svg")
    net.svg(options.out / "showcase-heat.svg", example=(torch.rand(64, 64), torch.ones(64, 64)), profile=True)
    print(f"\npictures: {options.out / 'showcase.svg'}, {options.out / 'showcase-heat.svg'}")


if __name__ == "__main__":
    main()
