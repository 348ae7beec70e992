"""A small GPT on characters, as a flow: it learns the sources of Python's own library and then writes some of its own.

The text is on every machine that has Python; nothing is downloaded. Bits a character are compared with what knowing each
character's frequency alone would give.
"""

from __future__ import annotations

import argparse
import math
import sysconfig
from pathlib import Path

import torch
from torch import Tensor, nn, optim
from torch.nn import functional as F

import flodl as fl

FILES = (
    "argparse.py",
    "dataclasses.py",
    "functools.py",
    "inspect.py",
    "pathlib.py",
    "random.py",
    "textwrap.py",
    "typing.py",
)


class Attention(nn.Module):
    """Causal self-attention. x: (batch, time, features) -> the same"""

    def __init__(self, features: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(features, 3 * features), nn.Linear(features, features)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, features = x.shape
        q, k, v = (t.view(batch, time, self.heads, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, time, features))


class Embedding(nn.Module):
    """Characters and their places. x: (batch, time) of integers -> (batch, time, features)"""

    def __init__(self, characters: int, context: int, features: int) -> None:
        super().__init__()
        self.character, self.place = nn.Embedding(characters, features), nn.Embedding(context, features)

    def forward(self, x: Tensor) -> Tensor:
        return self.character(x) + self.place(torch.arange(x.shape[1], device=x.device))


def gpt(characters: int, context: int, features: int, heads: int, layers: int) -> fl.Graph:
    """(batch, time) of characters -> (batch, time, characters), scores of the next one"""
    model = fl.flow(Embedding(characters, context, features))
    for _ in range(layers):
        model = model.also(fl.flow(nn.LayerNorm(features)).through(Attention(features, heads))).also(
            fl.flow(nn.LayerNorm(features))
            .through(nn.Linear(features, 4 * features))
            .through(nn.GELU())
            .through(nn.Linear(4 * features, features))
        )
    return model.through(nn.LayerNorm(features)).through(nn.Linear(features, characters)).build()


class Windows:
    """Pieces of a text, and the same one character on."""

    def __init__(self, text: Tensor, context: int) -> None:
        self.text, self.context = text, context

    def __len__(self) -> int:
        return (len(self.text) - 1) // self.context

    def fetch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """index: (batch,) -> (batch, context) twice"""
        places = index.unsqueeze(1) * self.context + torch.arange(self.context)
        return self.text[places], self.text[places + 1]


@torch.no_grad()
def write(model: nn.Module, start: str, known: str, length: int, context: int) -> str:
    """Text that the model goes on with."""
    text = torch.tensor([[known.index(c) for c in start]])
    for _ in range(length):
        scores = model(text[:, -context:])[0, -1] / 0.8
        text = torch.cat([text, torch.multinomial(scores.softmax(-1), 1).view(1, 1)], dim=1)
    return "".join(known[i] for i in text[0].tolist())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--files", type=int, default=len(FILES), help="how many of the library's files are read")
    parser.add_argument("--context", type=int, default=64, help="characters that it sees")
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--write", type=int, default=300, help="characters to write in the end")
    given = parser.parse_args()

    library = Path(sysconfig.get_path("stdlib"))
    text = "".join(library.joinpath(name).read_text("utf-8") for name in FILES[: given.files])
    known = "".join(sorted(set(text)))
    numbers = torch.tensor([known.index(c) for c in text])
    cut = len(numbers) * 9 // 10
    frequency = torch.bincount(numbers, minlength=len(known)).double() / len(numbers)
    entropy = -(frequency * frequency.clamp(min=1e-12).log2()).sum().item()
    print(f"{len(text):,} characters, {len(known)} different ones: {entropy:.2f} bits each by frequency alone")

    torch.manual_seed(0)
    model = gpt(len(known), given.context, given.features, 4, given.layers)
    trainer = fl.Trainer.setup(
        model, optim.AdamW(model.parameters(), lr=3e-3), Windows(numbers[:cut], given.context), batch_size=32,
        scheduler="cosine", warmup_steps=20, clip_norm=1.0,
    )  # fmt: skip

    def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())

    with trainer:
        for _ in trainer.epochs(given.epochs):
            for batch in trainer.batches():
                trainer.train_step(loss_of, batch)
        held_out = Windows(numbers[cut:], given.context)
        loss = trainer.evaluate(held_out, lambda m, b: {"loss": loss_of(m, b)})["loss"]
    print(f"held-out text: {loss / math.log(2):.2f} bits a character")
    model.eval()
    print(write(model, "def ", known, given.write, given.context))


if __name__ == "__main__":
    main()
