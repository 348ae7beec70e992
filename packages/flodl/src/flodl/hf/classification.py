"""Labels of whole texts, and of words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from flodl.errors import DataError, nearest
from flodl.hf.encoded import Encoded
from flodl.hf.head import Head, pairs
from flodl.hf.results import Entity, Label

__all__ = ["AutoModelForSequenceClassification", "AutoModelForTokenClassification"]

_IGNORED = -100


class AutoModelForSequenceClassification(Head):
    """A label for each text, or pair of texts.

    Trained on `(text, label)` or dicts with `text` and `label`; a text may be a pair. A label is a number or a name; a
    number with a fraction where the model has one output (regression), a vector of 0 and 1 where labels do not exclude
    each other (`problem_type="multi_label_classification"`).
    """

    task: ClassVar[str] = "SEQ_CLS"

    def predict(self, texts: Sequence[str | tuple[str, str]], *, batch_size: int = 32) -> list[list[Label]]:
        """For each text all labels, the most probable first."""
        found: dict[int, list[Label]] = {}
        for index, outputs, _ in self._outputs(self._texts(texts), batch_size):
            several = self.config.problem_type == "multi_label_classification"
            scores = outputs.logits.float().sigmoid() if several else outputs.logits.float().softmax(-1)
            if self.config.num_labels == 1:
                scores = outputs.logits.float()
            for i, row in zip(index, scores.tolist(), strict=True):
                ranked = sorted(zip(self.labels, row, strict=True), key=lambda pair: -pair[1])
                found[i] = [Label(name, score) for name, score in ranked]
        return [found[i] for i in range(len(found))]

    def metrics(self, model: nn.Module, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The loss, and the share of right labels where there are classes."""
        out = model(**batch)
        if batch["labels"].is_floating_point():
            return {"loss": out.loss}
        return {"loss": out.loss, "accuracy": (out.logits.argmax(-1) == batch["labels"]).float().mean()}

    def _texts(self, texts: Sequence[Any]) -> Any:
        if texts and isinstance(texts[0], (tuple, list)):
            return self._tokens([t[0] for t in texts], [t[1] for t in texts])
        return self._tokens(list(texts))

    def _encode(self, samples: list[Any]) -> Encoded:
        rows = list(pairs(samples, ("text", "sentence"), ("label", "labels")))
        texts, given = [row[0] for row in rows], [row[1] for row in rows]
        if given and isinstance(given[0], str):
            labels = torch.tensor([_number(name, self.labels, i) for i, name in enumerate(given)])
        else:
            labels = torch.as_tensor(np.asarray(given))
        if labels.is_floating_point() or labels.dim() > 1:
            labels = labels.float()
        else:
            labels = labels.long()
            wrong = ((labels < 0) | (labels >= self.config.num_labels)).nonzero()
            if len(wrong):
                i = int(wrong[0])
                raise DataError(f"Label {int(labels[i])} of sample {i} is outside 0..{self.config.num_labels - 1}.")
        return Encoded(self._columns(self._texts(texts)), {"labels": labels}, pads=self._pads)


class AutoModelForTokenClassification(Head):
    """A label for each word.

    Trained on `(words, labels)` or dicts with `tokens` and `tags` (names or numbers): a word's first piece carries its
    label, the others -100.
    """

    task: ClassVar[str] = "TOKEN_CLS"
    loss_weight: ClassVar[Literal["samples", "tokens"]] = "tokens"

    def predict(self, texts: Sequence[str], *, batch_size: int = 32) -> list[list[Entity]]:
        """For each text its labelled spans. Labels `B-x`, `I-x` make spans of several words, `O` none; where no label of
        the model has such a prefix, each word is a span."""
        encodings = self._tokens(list(texts), return_offsets_mapping=True)
        found: dict[int, list[Entity]] = {}
        for index, outputs, _ in self._outputs(encodings, batch_size):
            best = outputs.logits.float().softmax(-1).max(-1)
            for i, scores, labels in zip(index, best.values.tolist(), best.indices.tolist(), strict=True):
                words = _words(encodings.word_ids(i), encodings["offset_mapping"][i])
                tagged = [(self.labels[labels[at]], scores[at], start, end) for at, start, end in words]
                found[i] = list(_spans(texts[i], tagged, any(name[:2] in ("B-", "I-") for name in self.labels)))
        return [found[i] for i in range(len(found))]

    def metrics(self, model: nn.Module, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The loss, and the share of right labels of the words."""
        out = model(**batch)
        valid = batch["labels"] != _IGNORED
        right = (out.logits.argmax(-1) == batch["labels"])[valid]
        return {"loss": out.loss, "accuracy": right.float().mean()}

    def _encode(self, samples: list[Any]) -> Encoded:
        rows = list(pairs(samples, ("tokens", "words"), ("tags", "labels", "ner_tags")))
        encodings = self._tokens([" ".join(words) for words, _ in rows], return_offsets_mapping=True)
        columns = self._columns(encodings)
        columns["labels"] = [
            self._labels_of(words, labels, encodings["offset_mapping"][i], i) for i, (words, labels) in enumerate(rows)
        ]
        return Encoded(columns, pads=self._pads)

    def _labels_of(self, words: Sequence[str], labels: Sequence[Any], offsets: Any, sample: int) -> list[int]:
        if len(words) != len(labels):
            raise DataError(f"Sample {sample} has {len(labels)} labels for {len(words)} words.")
        numbers = [_number(name, self.labels, sample) if isinstance(name, str) else int(name) for name in labels]
        word_at = [i for i, word in enumerate(words) for _ in range(len(word) + 1)]  # of each character, space included
        result, before = [], None
        for start, end in offsets:
            # The last character: a piece may begin with the space before its word.
            word = word_at[end - 1] if end > start else None
            result.append(_IGNORED if word is None or word == before else numbers[word])
            before = word if word is not None else before
        if all(label == _IGNORED for label in result):
            raise DataError(f"Sample {sample} has no labelled word, so there is nothing to learn from it.")
        return result


def _number(name: str, names: Sequence[str], sample: int) -> int:
    if name not in names:
        raise DataError(f"Sample {sample} has the label {name!r}, which the model has not.{nearest(name, names)}")
    return names.index(name)


def _words(word_ids: Sequence[int | None], offsets: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    """The first token of each word, and the characters of the word."""
    at, before, start, end = 0, None, 0, 0
    for token, word in enumerate(word_ids):
        if word != before:
            if before is not None:
                yield at, start, end
            at, start = token, offsets[token][0]
        end, before = offsets[token][1], word
    if before is not None:
        yield at, start, end


def _spans(text: str, tagged: Sequence[tuple[str, float, int, int]], prefixed: bool) -> Iterator[Entity]:
    """Words of one label, `B-x` then `I-x`, as one span."""
    open_: list[tuple[str, float, int, int]] = []
    for label, score, start, end in [*tagged, ("O", 0.0, 0, 0)]:
        kind = label[2:] if prefixed and label[:2] in ("B-", "I-") else label
        if open_ and not (prefixed and label[:2] == "I-" and open_[0][0] == kind):
            first, last = open_[0][2], open_[-1][3]
            first += len(text[first:last]) - len(text[first:last].lstrip())
            mean = sum(word[1] for word in open_) / len(open_)
            yield Entity(open_[0][0], mean, first, last, text[first:last])
            open_ = []
        if label != "O":
            open_.append((kind, score, start, end))
