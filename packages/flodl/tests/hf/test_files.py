"""Adapters, exports, conversions, and where models come from."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import hf_models
import pytest
import torch
import transformers
from torch import nn

import flodl as fl
from flodl import hf
from flodl.hf import cli, lora


def logits(model: Any, tokenizer: Any) -> torch.Tensor:
    inputs = tokenizer(hf_models.TEXTS, padding=True, return_tensors="pt")
    with torch.inference_mode():
        return model.eval()(**inputs).logits


def learn(head: hf.Head, name: str, steps: int = 2) -> None:
    optimizer = torch.optim.AdamW([p for p in head.model.parameters() if p.requires_grad], lr=1e-2)
    data = head.encode(hf_models.samples_of(name))
    for _ in range(steps):
        head.compute_loss(data.fetch(torch.arange(4))).backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize(("family", "name"), [("BERT", "sequence"), ("LLaMA", "causal"), ("GPT-2", "causal")])
def test_adapters_are_saved_alone_and_merged_on_export(family: str, name: str, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    head = hf_models.make(family, name)
    plain = copy.deepcopy(head)
    head.add_lora(4, alpha=32)
    learn(head, name)
    trained = logits(head.model, head.tokenizer)
    assert not torch.equal(trained, logits(plain.model, head.tokenizer))

    folder = head.save_adapters(tmp_path / "adapters")
    assert {p.name for p in folder.iterdir()} >= {"adapter_config.json", "adapter_model.safetensors"}
    assert not (folder / "model.safetensors").exists()
    plain.load_adapters(folder)
    assert torch.equal(logits(plain.model, head.tokenizer), trained)

    exported = hf.export(head, tmp_path / "exported")
    theirs = getattr(transformers, type(head).__name__).from_pretrained(exported)
    torch.testing.assert_close(logits(theirs, head.tokenizer), trained, rtol=1e-5, atol=1e-5)
    assert lora.is_lora(head.model), "it can be trained further"
    found = hf.verify(exported, head)
    assert found.passed, str(found)


@pytest.mark.parametrize("target", ["wte", "lm_head"])
def test_an_adapter_of_one_of_two_tied_weights_unties_them(target: str, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    head = hf_models.make("GPT-2", "causal")
    head.add_lora(4, alpha=32, target_modules=["c_attn", target], fan_in_fan_out=False)
    learn(head, "causal")
    trained = logits(head.model, head.tokenizer)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(hf.export(head, tmp_path / "exported"))
    torch.testing.assert_close(logits(theirs, head.tokenizer), trained, rtol=1e-5, atol=1e-5)
    assert not torch.equal(theirs.lm_head.weight, theirs.transformer.wte.weight)


def test_a_training_with_adapters_exports_from_its_checkpoint(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    head = hf_models.make("BERT", "token")
    head.add_lora(2)
    trainer = fl.Trainer.setup_head(
        head,
        lambda p: torch.optim.AdamW((x for x in p if x.requires_grad), lr=1e-2),
        hf_models.samples_of("token"),
        batch_size=4,
        step="eager",
        quiet=True,
    )
    for _ in trainer.epochs(1):
        for batch in trainer.batches():
            trainer.step(head.compute_loss(batch))
    run = trainer.run.folder
    trainer.close()
    assert cli.main(["export", str(run), str(tmp_path / "out")]) == 0
    assert cli.main(["verify", str(tmp_path / "out"), "--against", str(run)]) == 0
    theirs = transformers.AutoModelForTokenClassification.from_pretrained(tmp_path / "out")
    torch.testing.assert_close(logits(theirs, head.tokenizer), logits(head.model, head.tokenizer), rtol=1e-5, atol=1e-5)


def test_verify_tells_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from safetensors.torch import load_file, save_file

    head = hf_models.make("BERT", "masked")
    folder = hf.export(head, tmp_path / "exported")
    good = hf.verify(folder, head)
    assert good.passed
    assert good.ties, "the output layer is the embedding"
    other = hf.export(hf_models.make("BERT", "masked", seed=1), tmp_path / "other")
    assert cli.main(["verify", str(folder), "--against", str(other)]) == 1
    assert "FAILED" in capsys.readouterr().out
    weights = load_file(folder / "model.safetensors")
    gone = next(name for name in weights if name.endswith("attention.self.query.weight"))
    weights["stray"] = weights.pop(gone).clone()
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    bad = hf.verify(folder)
    assert (bad.missing, bad.unexpected, bad.passed) == ((gone,), ("stray",), False)
    with pytest.raises(fl.CheckpointError, match="no exported model"):
        hf.export(head, _with(tmp_path / "mine", "notes.txt"))
    assert cli.main(["export", str(tmp_path), str(tmp_path / "x")]) == 2


def _with(folder: Path, name: str) -> Path:
    folder.mkdir()
    (folder / name).write_text("mine")
    return folder


class _Evil:
    def __reduce__(self) -> Any:
        return os.mkdir, ("ran",)


@pytest.mark.parametrize("parts", [1, 2])
def test_old_weights_become_safetensors(parts: int, tmp_path: Path) -> None:
    import json

    head = hf_models.make("BERT", "masked")
    folder = hf.export(head, tmp_path / "old")
    (folder / "model.safetensors").unlink()
    state = head.model.state_dict()
    names = list(state)
    files = ["pytorch_model.bin"] if parts == 1 else [f"pytorch_model-0000{i}-of-00002.bin" for i in (1, 2)]
    where = {name: files[i * parts // len(names)] for i, name in enumerate(names)}
    for file in files:
        torch.save({name: state[name] for name in names if where[name] == file}, folder / file)
    if parts == 2:
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    converted = hf.convert(folder, tmp_path / "new")
    assert not list(converted.glob("*.bin*"))
    found = hf.verify(converted, head, tolerance=0.0)
    assert found.passed, str(found)


def test_code_in_old_weights_does_not_run(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps(_Evil()))
    with pytest.raises(fl.CheckpointError, match="holds more than weights"):
        hf.convert(tmp_path)
    assert not Path("ran").exists()
    with pytest.raises(fl.CheckpointError, match=r"There is no pytorch_model\.bin"):
        hf.convert(_with(tmp_path / "empty", "x"))


def test_a_folder_opens_as_a_head_with_new_labels(tmp_path: Path) -> None:
    folder = hf.export(hf_models.make("BERT", "bare"), tmp_path / "bert")
    head = hf.AutoModelForSequenceClassification.from_pretrained(folder, labels=["no", "yes"])
    assert head.labels == ("no", "yes")
    assert [label.label for label in head.predict(["Short text."])[0]] in (["no", "yes"], ["yes", "no"])
    view = head.graph
    view.freeze("bert.embeddings")
    assert not any(p.requires_grad for p in head.model.bert.embeddings.parameters())
    vectors = hf.AutoModel.from_pretrained(folder).predict(hf_models.TEXTS)
    assert vectors.shape == (7, 32)
    with pytest.raises(fl.DataError, match="has the label 'maybe', which the model has not"):
        head.encode([("a text", "maybe")])
    with pytest.raises(fl.DataError, match="Label 2 of sample 1"):
        head.encode([("a text", 0), ("a text", 2)])
    with pytest.raises(fl.TrainingError, match="no labels to train on"):
        hf.AutoModel.from_pretrained(folder).encode(["a text"])


def test_what_is_neither_cached_nor_reachable_is_told_with_the_remedy() -> None:
    code = "from flodl import hf; hf.AutoModel.from_pretrained('nobody/nothing')"
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": os.getcwd()}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)
    assert "CheckpointError: 'nobody/nothing' is no folder here" in done.stderr
    assert "HF_HUB_OFFLINE is set" in done.stderr
    assert "hf download nobody/nothing" in done.stderr


def test_importing_flodl_hf_does_not_import_transformers() -> None:
    code = "import sys, flodl.hf; sys.exit('transformers' in sys.modules or 'peft' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0


def test_tokenizers_that_cannot_serve_are_refused() -> None:
    head = hf_models.make("BERT", "masked")
    with pytest.raises(fl.ConfigError, match="no fast tokenizer"):
        hf.AutoModel(nn.Linear(2, 2), object())
    head.tokenizer.mask_token = None
    with pytest.raises(fl.ConfigError, match="no mask token"):
        hf.AutoModelForMaskedLM(head.model, head.tokenizer)
