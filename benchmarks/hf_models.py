"""Tiny models of nine families with random weights, and tokenizers trained on the spot: nothing is downloaded."""

from __future__ import annotations

import copy
import functools
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from torch import nn

from flodl import hf

TEXTS = [
    "The quick brown fox jumps over the lazy dog near the river bank.",
    "A model that is trained on mails tells the wanted ones from spam.",
    "Anna Smith from Berlin wrote a letter to the University of Oslo.",
    "Buy cheap watches now, the best offer of the year ends today!",
    "Rivers of the north carry more water in spring than in autumn.",
    "Short text.",
    "He asked her where the station was, and she told him: behind the old bridge.",
]

_SPECIAL = {
    "wordpiece": {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"},
    "bytes": {
        "bos": "<s>",
        "pad": "<pad>",
        "eos": "</s>",
        "unk": "<unk>",
        "cls": "<s>",
        "sep": "</s>",
        "mask": "<mask>",
    },
    "unigram": {"pad": "<pad>", "unk": "<unk>", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"},
    "causal": {"bos": "<s>", "eos": "</s>", "unk": "<unk>"},
}

# name: configuration, kind of tokenizer, fields of the configuration
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "BERT": ("BertConfig", "wordpiece", {}),
    "RoBERTa": ("RobertaConfig", "bytes", {"max_position_embeddings": 70, "type_vocab_size": 1}),
    "DistilBERT": ("DistilBertConfig", "wordpiece", {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64}),
    "ALBERT": ("AlbertConfig", "unigram", {"embedding_size": 16}),
    "XLM-RoBERTa": ("XLMRobertaConfig", "unigram", {"max_position_embeddings": 70, "type_vocab_size": 1}),
    "DeBERTa-v2": (
        "DebertaV2Config",
        "unigram",
        {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "type_vocab_size": 0},
    ),
    "ModernBERT": ("ModernBertConfig", "bytes", {"reference_compile": False}),
    "LLaMA": ("LlamaConfig", "causal", {"num_key_value_heads": 2, "tie_word_embeddings": False}),
    "GPT-2": ("GPT2Config", "causal", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}),
}

HEADS = {
    "sequence": hf.AutoModelForSequenceClassification,
    "token": hf.AutoModelForTokenClassification,
    "question": hf.AutoModelForQuestionAnswering,
    "masked": hf.AutoModelForMaskedLM,
    "causal": hf.AutoModelForCausalLM,
    "bare": hf.AutoModel,
}
TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]


def heads_of(family: str) -> list[str]:
    """Which heads transformers has for the family."""
    causal = family in ("LLaMA", "GPT-2")
    return [name for name in HEADS if name != ("masked" if causal else "causal")]


def tokenizer(kind: str) -> Any:
    """A small vocabulary from the texts above."""
    return copy.deepcopy(_trained(kind))


@functools.cache
def _trained(kind: str) -> Any:
    special = _SPECIAL[kind]
    names = list(dict.fromkeys(special.values()))
    options = {"special_tokens": names, "show_progress": False, "vocab_size": 400}
    if kind == "wordpiece":
        tok = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tok.normalizer = normalizers.BertNormalizer(lowercase=True)
        tok.pre_tokenizer, tok.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
        trainer: Any = trainers.WordPieceTrainer(**options)
    elif kind == "unigram":
        tok = Tokenizer(models.Unigram())
        tok.pre_tokenizer, tok.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
        trainer = trainers.UnigramTrainer(unk_token="<unk>", **options)
    else:
        tok = Tokenizer(models.BPE())
        tok.pre_tokenizer, tok.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
        trainer = trainers.BpeTrainer(initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), **options)
    tok.train_from_iterator(TEXTS, trainer)
    if "cls" in special:
        cls, sep = special["cls"], special["sep"]
        tok.post_processor = processors.TemplateProcessing(
            single=f"{cls} $A {sep}",
            pair=f"{cls} $A {sep} $B:1 {sep}:1" if kind == "wordpiece" else f"{cls} $A {sep} $B {sep}",
            special_tokens=[(name, tok.token_to_id(name)) for name in (cls, sep)],
        )
    inputs = ["input_ids", "attention_mask"] + ["token_type_ids"] * (kind == "wordpiece")
    given = {f"{name}_token": token for name, token in special.items()}
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tok, model_max_length=1_000_000, model_input_names=inputs, **given
    )


def make(family: str, head: str, *, dropout: bool = False, seed: int = 0, **fields: Any) -> Any:
    """A head with random weights; `dropout` keeps the family's own."""
    config_name, kind, own = FAMILIES[family]
    tok = tokenizer(kind)
    config_class = getattr(transformers, config_name)
    sizes = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "max_position_embeddings": 64,
    }
    known = {
        **{k: v for k, v in sizes.items() if not own.keys() & {"dim", "n_embd"} or k == "max_position_embeddings"},
        **own,
    }
    if family == "GPT-2":
        known.pop("max_position_embeddings")
    if head in ("sequence", "token"):
        names = ["ham", "spam"] if head == "sequence" else TAGS
        known["id2label"] = dict(enumerate(names))
        known["label2id"] = {name: i for i, name in enumerate(names)}
    ids = {f"{name}_token_id": getattr(tok, f"{name}_token_id") for name in ("bos", "eos", "pad", "cls", "sep")}
    config = config_class(vocab_size=len(tok), **{**known, **ids, **fields})
    torch.manual_seed(seed)
    cls = HEADS[head]
    model = getattr(transformers, cls.__name__).from_config(config)
    if not dropout:
        without_dropout(model)
    return cls(model, tok)


def without_dropout(model: nn.Module) -> None:
    """In the modules, and in the numbers that attention functions are given."""
    for module in model.modules():
        if isinstance(module, nn.Dropout) or type(module).__name__ == "StableDropout":
            module.p = 0.0
        for name in ("attention_dropout", "dropout_prob", "attention_probs_dropout_prob"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)


def samples_of(head: str) -> list[Any]:
    """What a head is trained on."""
    if head == "sequence":
        return [(text, i % 2) for i, text in enumerate(TEXTS)]
    if head == "token":
        return [(text.split(), [TAGS[len(word) % 5] for word in text.split()]) for text in TEXTS]
    if head == "question":
        texts = [text for text in TEXTS if len(text.split()) > 3]
        return [
            ("Which word is it?", text, {"text": [text.split()[2]], "answer_start": [text.index(text.split()[2])]})
            for text in texts
        ]
    return list(TEXTS)
