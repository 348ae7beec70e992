"""Heads under the Trainer: batches, losses over valid tokens, adapters, exports from a training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hf_models
import pytest
import torch
import transformers
from torch import nn, optim
from torch.nn import functional as F

import flodl as fl
from flodl import hf

QUIET = {"quiet": True, "record": False, "checkpoint": False, "step": "eager", "device": "cpu"}


def sgd(parameters: Any) -> optim.Optimizer:
    return optim.SGD(parameters, lr=0.1)


def flat_gradients(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize("family", ["BERT", "RoBERTa", "ALBERT"])
def test_a_batch_is_what_the_tokenizer_pads(family: str) -> None:
    head = hf_models.make(family, "sequence")
    batch = head.encode(hf_models.samples_of("sequence")).fetch(torch.tensor([5, 1, 0]))
    texts = [hf_models.TEXTS[i] for i in (5, 1, 0)]
    expected = head.tokenizer(texts, padding=True, return_tensors="pt")
    assert set(batch) == {*expected, "labels"}
    for name, values in expected.items():
        assert torch.equal(batch[name], values), name
    assert batch["labels"].tolist() == [1, 1, 0]


def test_the_first_piece_of_each_word_carries_its_label() -> None:
    for family in ("BERT", "RoBERTa", "XLM-RoBERTa"):
        head = hf_models.make(family, "token")
        words = ["Anna", "watches", "trained", "old", "bridges"]
        batch = head.encode([(words, ["B-PER", "O", "I-LOC", "B-LOC", "I-PER"])]).fetch(torch.tensor([0]))
        labels = batch["labels"][0]
        assert labels[labels != -100].tolist() == [1, 0, 4, 3, 2], family
        pieces = [head.tokenizer.decode([i]).strip(" #") for i in batch["input_ids"][0][labels != -100]]
        assert all(word.lower().startswith(piece.lower()) for word, piece in zip(words, pieces, strict=True)), pieces


@pytest.mark.parametrize("name", ["token", "masked"])
def test_a_window_of_batches_has_the_gradient_of_all_its_valid_tokens(name: str) -> None:
    head = hf_models.make("BERT", name)
    data = head.encode(hf_models.samples_of(name))
    trainer = fl.Trainer.setup_head(head, sgd, data, batch_size=2, accumulate=4, seed=3, **QUIET)
    before = {key: value.clone() for key, value in head.model.state_dict().items()}
    batches = []
    for batch in trainer.batches():
        batches.append(batch)
        trainer.step(head.compute_loss(batch))
    trainer.close()
    after = {key: value.clone() for key, value in head.model.state_dict().items()}

    head.model.load_state_dict(before)
    head.model.zero_grad()
    losses, tokens = [], 0
    for batch in batches:
        logits = head.model(**{k: v for k, v in batch.items() if k != "labels"}).logits
        losses.append(F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), reduction="sum"))
        tokens += int((batch["labels"] != -100).sum())
    assert len({int((b["labels"] != -100).sum()) for b in batches}) > 1, "else each weight would do"
    (sum(losses) / tokens).backward()
    sgd(head.model.parameters()).step()
    for key, value in head.model.state_dict().items():
        torch.testing.assert_close(after[key], value, rtol=1e-5, atol=1e-6)


def test_a_causal_loss_counts_each_predicted_token_once() -> None:
    head = hf_models.make("GPT-2", "causal")
    batch = head.encode(["Rivers of the north", "Short text."]).fetch(torch.tensor([0, 1]))
    logits = head.model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    labels = batch["labels"]
    assert (labels != -100).sum() == batch["attention_mask"].sum() - 2
    mean = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
    torch.testing.assert_close(head.compute_loss(batch), mean)
    ends = labels.gather(1, batch["attention_mask"].sum(1, keepdim=True) - 1)
    assert ends.unique().tolist() == [head.tokenizer.eos_token_id]


def test_hidden_tokens_are_drawn_anew_and_repeat_with_the_seed() -> None:
    head = hf_models.make("BERT", "masked")
    data = head.encode(hf_models.TEXTS)
    torch.manual_seed(0)
    one, two = (data.fetch(torch.arange(7)) for _ in range(2))
    torch.manual_seed(0)
    again = data.fetch(torch.arange(7))
    assert not torch.equal(one["labels"], two["labels"])
    assert all(torch.equal(one[key], again[key]) for key in one)
    special = torch.isin(one["labels"], torch.tensor(head.tokenizer.all_special_ids))
    assert not special.any()
    assert all((data.fetch(torch.tensor([5]))["labels"] != -100).any() for _ in range(20)), "three tokens, one of them"


def test_an_answer_is_found_again_in_the_window_that_has_it() -> None:
    head = hf_models.make("BERT", "question")
    head.max_length = 32
    context = " ".join(hf_models.TEXTS)
    start = context.index("University of Oslo")
    answers = [("University of Oslo", start), None]
    data = head.encode([("Where?", context, answer) for answer in answers])
    batch = data.fetch(torch.arange(len(data)))
    spans = list(zip(batch["start_positions"].tolist(), batch["end_positions"].tolist(), strict=True))
    found = [
        head.tokenizer.decode(batch["input_ids"][i, a : b + 1]) for i, (a, b) in enumerate(spans) if (a, b) != (0, 0)
    ]
    assert found
    assert {text.replace(" ", "") for text in found} == {"universityofoslo"}
    assert spans[len(spans) // 2 :] == [(0, 0)] * (len(spans) // 2)


def test_an_overfitted_model_answers_labels_and_names_what_it_learnt() -> None:
    """The whole way of each head: from samples over training to `predict`."""
    tasks = {name: hf_models.make("BERT", name) for name in ("sequence", "token", "question")}
    for name, head in tasks.items():
        samples = hf_models.samples_of(name)
        handle = (
            head.builder(lambda p: optim.AdamW(p, lr=5e-3), samples)
            .batch_size(4)
            .num_epochs(40)
            .scheduler("linear")
            .settings(warmup_steps=5, **QUIET)
            .run()
        )
        handle.join()
    labels = tasks["sequence"].predict(hf_models.TEXTS)
    assert [row[0].label for row in labels] == [["ham", "spam"][i % 2] for i in range(len(labels))]
    assert sum(label.score for label in labels[0]) == pytest.approx(1.0)
    questions = hf_models.samples_of("question")
    answers = tasks["question"].predict([(q, c) for q, c, _ in questions])
    assert [answer.text for answer in answers] == [answer["text"][0] for _, _, answer in questions]
    assert all(
        c[answer.start : answer.end] == answer.text for answer, (_, c, _) in zip(answers, questions, strict=True)
    )
    entities = tasks["token"].predict([hf_models.TEXTS[3]])[0]
    assert [(e.label, e.text, e.start, e.end) for e in entities[:2]] == [
        ("LOC", "Buy", 0, 3),
        ("PER", "watches", 10, 17),
    ]


@pytest.mark.parametrize(("family", "name"), [("BERT", "sequence"), ("GPT-2", "causal"), ("DeBERTa-v2", "token")])
def test_a_training_exports_what_transformers_loads_with_the_same_logits(
    family: str, name: str, tmp_path: Path
) -> None:
    head = hf_models.make(family, name)
    samples = hf_models.samples_of(name)
    kept = {**QUIET, "record": True, "checkpoint": True}
    trainer = fl.Trainer.setup_head(head, sgd, samples, batch_size=4, **kept)
    for _ in trainer.epochs(1):
        for batch in trainer.batches():
            trainer.train_step(head.train_fn, batch)
    run = trainer.run.folder
    trainer.close()
    folder = hf.export(run, tmp_path / "exported")
    theirs = getattr(transformers, type(head).__name__).from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(hf_models.TEXTS, padding=True, return_tensors="pt")
    with torch.inference_mode():
        assert torch.equal(theirs(**inputs).logits, head.model.eval()(**inputs).logits)
    assert tuple(theirs.config.id2label.values()) == head.labels
    assert tokenizer.pad_token == head.tokenizer.pad_token
    if name == "causal":
        assert theirs.generation_config.eos_token_id == head.tokenizer.eos_token_id
        assert head.generate(["The quick"], max_new_tokens=3, do_sample=False)
    found = hf.verify(folder, run)
    assert found.passed, str(found)
    assert found.largest_difference == 0.0


def test_checkpointed_gradients_are_the_same() -> None:
    head = hf_models.make("ModernBERT", "sequence")
    head.model.train()
    batch = head.encode(hf_models.samples_of("sequence")).fetch(torch.arange(7))
    head.compute_loss(batch).backward()
    plain = flat_gradients(head.model)
    head.model.zero_grad()
    head.checkpoint_gradients()
    assert any(getattr(module, "gradient_checkpointing", False) for module in head.model.modules())
    head.compute_loss(batch).backward()
    torch.testing.assert_close(flat_gradients(head.model), plain)
