"""Answers as spans of a context."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from flodl.errors import DataError
from flodl.hf.encoded import Encoded
from flodl.hf.head import Head, pairs
from flodl.hf.results import Answer

__all__ = ["AutoModelForQuestionAnswering"]

_MOST_TOKENS = 30  # of an answer


class AutoModelForQuestionAnswering(Head):
    """The span of a context that answers a question.

    Trained on `(question, context, answer)`, or dicts with `question`, `context`, `answers` as SQuAD has them:
    `{"text": [...], "answer_start": [...]}`, `(text, start)`, or None for no answer. Long contexts become windows that
    overlap by a quarter; one without the answer answers with the first token.
    """

    task: ClassVar[str] = "QUESTION_ANS"

    def predict(self, questions: Sequence[tuple[str, str]], *, batch_size: int = 32) -> list[Answer]:
        """questions: `(question, context)`. The most probable span of at most 30 tokens for each."""
        encodings = self._windows([q for q, _ in questions], [c for _, c in questions])
        best: dict[int, tuple[float, int, int]] = {}
        total: dict[int, list[Tensor]] = {}
        for index, outputs, mask in self._outputs(encodings, batch_size):
            # All windows of a context compete: their logits are compared before they become probabilities.
            for row, window in enumerate(index):
                question = encodings["overflow_to_sample_mapping"][window]
                length = int(mask[row].sum())
                inside = torch.tensor([part == 1 for part in encodings.sequence_ids(window)], device=mask.device)
                scores = (
                    outputs.start_logits[row, :length, None].double() + outputs.end_logits[row, None, :length].double()
                )
                allowed = (inside[:, None] & inside[None]).triu() & ~torch.ones_like(scores).bool().triu(_MOST_TOKENS)
                scores = scores.masked_fill(~allowed, -torch.inf)
                total.setdefault(question, []).append(scores.logsumexp((0, 1)))
                at = int(scores.argmax())
                score, first, last = float(scores.flatten()[at]), at // length, at % length
                if question not in best or score > best[question][0]:
                    offsets = encodings["offset_mapping"][window]
                    best[question] = (score, offsets[first][0], offsets[last][1])
        answers = []
        for i, (_, context) in enumerate(questions):
            score, start, end = best[i]
            start += len(context[start:end]) - len(context[start:end].lstrip())
            probability = float((score - torch.stack(total[i]).logsumexp(0)).exp())
            answers.append(Answer(context[start:end], start, end, probability))
        return answers

    def _labels_as_inputs(self, labels: Any) -> dict[str, Tensor]:
        """labels: the first and the last token of each answer, (batch,) both."""
        return {"start_positions": labels[0], "end_positions": labels[1]}

    def _windows(self, questions: list[str], contexts: list[str]) -> Any:
        questions = [q.strip() for q in questions]
        return self._tokens(
            questions,
            contexts,
            truncation="only_second",
            stride=self.max_length // 4,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )

    def _encode(self, samples: list[Any]) -> Encoded:
        rows = list(pairs(samples, ("question",), ("context",), ("answers", "answer")))
        encodings = self._windows([row[0] for row in rows], [row[1] for row in rows])
        spans = [_span(row[2], row[1], i) for i, row in enumerate(rows)]
        starts, ends = [], []
        for window, sample in enumerate(encodings["overflow_to_sample_mapping"]):
            first, last = _tokens_of(spans[sample], encodings["offset_mapping"][window], encodings.sequence_ids(window))
            starts.append(first)
            ends.append(last)
        places = {"start_positions": torch.tensor(starts), "end_positions": torch.tensor(ends)}
        return Encoded(self._columns(encodings), places, pads=self._pads)


def _span(answer: Any, context: str, sample: int) -> tuple[int, int] | None:
    """The characters of the answer in the context."""
    if isinstance(answer, Mapping):
        answer = next(zip(answer["text"], answer["answer_start"], strict=True), None)
    if answer is None:
        return None
    text, start = answer
    if context[start : start + len(text)] != text:
        raise DataError(f"The answer {text!r} of sample {sample} does not stand at character {start} of its context.")
    return start, start + len(text)


def _tokens_of(span: tuple[int, int] | None, offsets: Any, parts: Sequence[int | None]) -> tuple[int, int]:
    """First and last token of the span; (0, 0) where the window has not all of it."""
    if span is None:
        return 0, 0
    inside = [t for t, part in enumerate(parts) if part == 1 and offsets[t][1] > span[0] and offsets[t][0] < span[1]]
    if not inside or offsets[inside[0]][0] > span[0] or offsets[inside[-1]][1] < span[1]:
        return 0, 0
    return inside[0], inside[-1]
