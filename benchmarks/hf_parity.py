"""Nine families of transformers with their heads: is everything that flodl makes of a model still that model?

Tiny random models, tokenizers trained on the spot. Logits of the head (wrapped), under torch.compile (compiled), after a
training that was saved and resumed against the loop by hand (resumed), exported and loaded again by transformers (exported),
and with LoRA adapters merged on export (merged) are compared with transformers' own: largest difference. The gradients of an
update of two unequal batches are compared with those of transformers' loss of both at once, relative to the largest one.
Exits with 1 where a difference is beyond 1e-5 (1e-4 for gradients).
"""

from __future__ import annotations

import argparse
import copy
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import hf_models
import torch
import transformers
from torch import Tensor, nn, optim

import flodl as fl
from flodl import hf

LIMIT, GRADIENT_LIMIT = 1e-5, 1e-4
COLUMNS = ("wrapped", "compiled", "resumed", "exported", "merged", "gradients")
TEXTS = hf_models.TEXTS[:4]


def outputs(model: nn.Module, inputs: dict[str, Tensor]) -> list[Tensor]:
    """In evaluation mode, without labels."""
    with torch.no_grad():
        found = model.eval()(**inputs)
    return [value for value in found.to_tuple() if isinstance(value, Tensor)]


def difference(one: list[Tensor], other: list[Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(one, other, strict=True))


def gradients(model: nn.Module) -> Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def row(family: str, name: str, *, compiled: bool) -> dict[str, float]:
    """The differences of one head; NaN for what does not apply."""
    head = hf_models.make(family, name)
    theirs = copy.deepcopy(head.model)  # a plain module of transformers, which flodl never sees
    plain = dict(head.tokenizer(TEXTS, padding=True, return_tensors="pt").items())
    found = dict.fromkeys(COLUMNS, float("nan"))
    found["wrapped"] = difference(outputs(head.model, plain), outputs(theirs, plain))
    if compiled:
        found["compiled"] = difference(outputs(torch.compile(head.model, dynamic=False), plain), outputs(theirs, plain))
    with tempfile.TemporaryDirectory() as folder:
        if name != "bare":
            found["gradients"] = _gradients(head, theirs, name)
            found["resumed"] = _resumed(head, name, plain, Path(folder))
        loader = getattr(transformers, type(head).__name__)
        exported = loader.from_pretrained(hf.export(head, Path(folder, "exported")))
        found["exported"] = difference(outputs(exported, plain), outputs(head.model, plain))
        found["merged"] = _merged(head, name, plain, Path(folder))
    return found


def _gradients(head: hf.Head, theirs: nn.Module, name: str) -> float:
    """An update of two batches by the Trainer, which divides by all valid tokens, against transformers' loss of both at once."""
    torch.manual_seed(1)
    whole = head.encode(hf_models.samples_of(name)).fetch(torch.arange(4))
    theirs.train()
    theirs.zero_grad()
    theirs(**whole).loss.backward()
    expected = gradients(theirs)
    one = copy.deepcopy(head)
    before = nn.utils.parameters_to_vector(one.model.parameters()).detach().clone()
    settings: dict[str, Any] = {"accumulate": 2, "step": "eager", "quiet": True, "record": False, "checkpoint": False}
    trainer = fl.Trainer.setup_head(one, lambda p: optim.SGD(p, lr=1.0), **settings)
    for rows in (slice(0, 1), slice(1, 4)):
        batch = {key: values[rows] for key, values in whole.items()}
        weight = (batch["labels"] != -100).sum() if head.loss_weight == "tokens" else len(batch["input_ids"])
        trainer.step(one.compute_loss(batch), weight=weight)
    trainer.close()
    made = before - nn.utils.parameters_to_vector(one.model.parameters()).detach()
    kept = torch.cat([torch.full((p.numel(),), p.grad is not None) for p in theirs.parameters()])
    return float((made[kept] - expected).abs().max() / expected.abs().max())


def _resumed(head: hf.Head, name: str, inputs: dict[str, Tensor], folder: Path) -> float:
    """Two steps by transformers' model in a loop by hand, against one step, a checkpoint, and one step by another head."""
    samples = hf_models.samples_of(name)[:4]
    settings: dict[str, Any] = {
        "batch_size": 4, "shuffle": False, "step": "eager", "quiet": True, "record": False, "checkpoint": False
    }  # fmt: skip
    by_hand, first, second = (copy.deepcopy(head) for _ in range(3))
    for parameter in second.model.parameters():
        parameter.data.zero_()  # what it has comes from the checkpoint
    data = by_hand.encode(samples)
    by_hand.model.train().zero_grad()
    optimizer = optim.AdamW(by_hand.model.parameters(), lr=1e-3)
    torch.manual_seed(2)
    for order in _orders(head, data):
        by_hand.model(**data.fetch(order)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.manual_seed(2)
    for number, one in enumerate((first, second)):
        state = torch.get_rng_state()
        trainer = fl.Trainer.setup_head(one, lambda p: optim.AdamW(p, lr=1e-3), samples, **settings)
        torch.set_rng_state(state)
        if number:
            trainer.resume(folder / "half")
        for _ in trainer.epochs(number + 1):
            for batch in trainer.batches():
                trainer.step(one.compute_loss(batch))
        if not number:
            trainer.save(folder / "half")
        trainer.close()
    if (
        name == "masked"
    ):  # what is hidden is drawn anew for each batch, by flodl's own seed: only the weights are compared
        again = copy.deepcopy(head)
        fl.checkpoint.load(folder / "half", model=again.model)
        return difference(outputs(again.model, inputs), outputs(first.model, inputs))
    return difference(outputs(second.model, inputs), outputs(by_hand.model, inputs))


def _orders(head: hf.Head, data: hf.Encoded) -> list[Tensor]:
    loader = fl.data.Loader(data, 4, shuffle=False, group_by_length=True)
    orders = [loader.order(epoch, 0) for epoch in (0, 1)]
    return [order for order in orders if order is not None]


def _merged(head: hf.Head, name: str, inputs: dict[str, Tensor], folder: Path) -> float:
    """Adapters that were trained, merged and loaded by transformers, against the adapters."""
    one = copy.deepcopy(head)
    one.model.zero_grad()
    one.add_lora(4)
    for parameter in one.model.parameters():
        if parameter.requires_grad:
            parameter.data.add_(torch.randn_like(parameter) * 0.02)
    loader = getattr(transformers, type(head).__name__)
    loaded = loader.from_pretrained(hf.export(one, folder / "merged"))
    return difference(outputs(loaded, inputs), outputs(one.model, inputs))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--families", nargs="*", choices=list(hf_models.FAMILIES), help="only these")
    parser.add_argument("--no-compile", action="store_true", help="without torch.compile, which takes minutes")
    given = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    print(f"{'family':<12} {'head':<9}" + "".join(f"{name:>11}" for name in COLUMNS))
    bad = 0
    for family in given.families or hf_models.FAMILIES:
        for name in hf_models.heads_of(family):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = row(family, name, compiled=not given.no_compile)
            torch.compiler.reset()
            cells = [f"{'-' if value != value else f'{value:.1e}':>11}" for value in found.values()]
            wrong = [k for k, v in found.items() if v > (GRADIENT_LIMIT if k == "gradients" else LIMIT)]
            bad += len(wrong)
            print(
                f"{family:<12} {name:<9}" + "".join(cells) + (f"  BEYOND: {', '.join(wrong)}" if wrong else ""),
                flush=True,
            )
    print("all within 1e-5, gradients within 1e-4" if not bad else f"{bad} are beyond 1e-5 (1e-4 for gradients)")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
