"""Language models: a token that is hidden, the token that comes next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from flodl.errors import ConfigError, DataError
from flodl.hf.encoded import Batch, Encoded
from flodl.hf.head import Head
from flodl.hf.results import Token

__all__ = ["AutoModelForCausalLM", "AutoModelForMaskedLM"]

_IGNORED = -100


class AutoModelForMaskedLM(Head):
    """Hidden tokens of a text.

    Trained on texts: of each batch, anew every time, 15 % of the tokens are chosen; 80 % of these are hidden, 10 % become
    another token, 10 % stay (BERT's recipe). At least one of each batch is chosen.
    """

    task: ClassVar[str] = "FEATURE_EXTRACTION"
    loss_weight: ClassVar[Literal["samples", "tokens"]] = "tokens"
    share = 0.15

    def __init__(self, model: nn.Module, tokenizer: Any, *, max_length: int | None = None) -> None:
        super().__init__(model, tokenizer, max_length=max_length)
        if tokenizer.mask_token_id is None:
            raise ConfigError("The tokenizer has no mask token: set tokenizer.mask_token, or choose a causal model.")

    def predict(self, texts: Sequence[str], *, top: int = 5, batch_size: int = 32) -> list[list[list[Token]]]:
        """For each text, for each of its mask tokens, the `top` most probable tokens."""
        encodings = self._tokens(list(texts))
        found: dict[int, list[list[Token]]] = {}
        for index, outputs, _ in self._outputs(encodings, batch_size):
            for row, i in enumerate(index):
                ids = torch.tensor(encodings["input_ids"][i])
                places = (ids == self.tokenizer.mask_token_id).nonzero().flatten().to(outputs.logits.device)
                found[i] = [_likeliest(self.tokenizer, logits, top) for logits in outputs.logits[row, places]]
        return [found[i] for i in range(len(found))]

    def _encode(self, samples: list[Any]) -> Encoded:
        encodings = self._tokens(_texts(samples))
        special = set(self.tokenizer.all_special_ids)
        empty = next((i for i, ids in enumerate(encodings["input_ids"]) if special.issuperset(ids)), None)
        if empty is not None:
            raise DataError(f"Sample {empty} has no token that could be hidden.")
        return Encoded(self._columns(encodings), pads=self._pads, finish=self._hide)

    def _hide(self, batch: Batch) -> Batch:
        ids = batch["input_ids"]
        may = ~torch.isin(ids, torch.tensor(self.tokenizer.all_special_ids))
        luck = torch.rand(ids.shape).masked_fill(~may, 1.0)
        chosen = luck < self.share
        if not chosen.any():
            chosen.view(-1)[luck.argmin()] = True
        labels = ids.masked_fill(~chosen, _IGNORED)
        how = torch.rand(ids.shape)
        hidden = ids.masked_fill(chosen & (how < 0.8), self.tokenizer.mask_token_id)
        others = torch.randint(len(self.tokenizer), ids.shape)
        return {**batch, "input_ids": torch.where(chosen & (how >= 0.9), others, hidden), "labels": labels}


class AutoModelForCausalLM(Head):
    """The next token.

    Trained on texts; each is ended by the end-of-text token where the tokenizer has one and there is room.
    """

    task: ClassVar[str] = "CAUSAL_LM"
    loss_weight: ClassVar[Literal["samples", "tokens"]] = "tokens"

    def predict(self, texts: Sequence[str], *, top: int = 5, batch_size: int = 32) -> list[list[Token]]:
        """For each text the `top` most probable next tokens."""
        found: dict[int, list[Token]] = {}
        for index, outputs, mask in self._outputs(self._tokens(list(texts)), batch_size):
            last = outputs.logits[torch.arange(len(index), device=mask.device), mask.sum(1) - 1]
            found.update((i, _likeliest(self.tokenizer, logits, top)) for i, logits in zip(index, last, strict=True))
        return [found[i] for i in range(len(found))]

    @torch.inference_mode()
    def generate(self, texts: Sequence[str], **options: Any) -> list[str]:
        """What follows each text. options: go to transformers' `generate`, such as `max_new_tokens`."""
        inputs = self._tokens(list(texts), padding=True, padding_side="left", return_tensors="pt").to(self.device)
        was = self.model.training
        self.model.eval()
        try:
            kept = {name: inputs[name] for name in ("input_ids", "attention_mask")}
            made: Tensor = self.model.generate(  # type: ignore[operator]
                **kept, pad_token_id=self.tokenizer.pad_token_id, **options
            )
        finally:
            self.model.train(was)
        new = made[:, inputs["input_ids"].shape[1] :]
        return [str(text) for text in self.tokenizer.batch_decode(new, skip_special_tokens=True)]

    def _encode(self, samples: list[Any]) -> Encoded:
        end = self.tokenizer.eos_token_id
        rows = []
        for i, ids in enumerate(self._tokens(_texts(samples))["input_ids"]):
            if end is not None and len(ids) < self.max_length and (not ids or ids[-1] != end):
                ids = [*ids, end]
            if len(ids) < 2:
                raise DataError(f"Sample {i} has {len(ids)} tokens; there is no next one to learn.")
            rows.append(ids)
        # The first token is nobody's next: without a label it is not counted among those that the loss is a mean over.
        labels = [[_IGNORED, *ids[1:]] for ids in rows]
        return Encoded({"input_ids": rows, "labels": labels}, pads=self._pads)


def _texts(samples: list[Any]) -> list[str]:
    texts = [sample["text"] if isinstance(sample, dict) and "text" in sample else sample for sample in samples]
    wrong = next((i for i, text in enumerate(texts) if not isinstance(text, str)), None)
    if wrong is not None:
        raise DataError(f"Sample {wrong} is {type(texts[wrong]).__name__}; it must be a text, or a dict with 'text'.")
    return texts


def _likeliest(tokenizer: Any, logits: Tensor, top: int) -> list[Token]:
    best = logits.float().softmax(-1).topk(min(top, len(logits)))
    return [
        Token(tokenizer.decode([i]).strip(), i, score)
        for score, i in zip(best.values.tolist(), best.indices.tolist(), strict=True)
    ]
