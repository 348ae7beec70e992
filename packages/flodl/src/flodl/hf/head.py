"""What all heads are: a transformers model with its tokenizer, which train, predict and export."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from flodl.errors import ConfigError, DataError, TrainingError
from flodl.graph import Graph
from flodl.hf import lora
from flodl.hf.encoded import Encoded
from flodl.hf.sources import needed, pretrained
from flodl.train import Callback, FitState, Trainer
from flodl.train.builder import TrainerBuilder
from flodl.train.callbacks import Control

__all__ = ["Head"]

_Head = TypeVar("_Head", bound="Head")

_NO_LIMIT = 1_000_000  # what a tokenizer says that knows none is beyond it


class Head:
    """A model of transformers for one task, with its tokenizer. The subclasses are named as transformers' own classes.

    model: any of transformers for the task, or one of peft around it. tokenizer: a fast one; where it has no padding token
    the end of a text is taken for it. max_length: tokens at most; longer texts are cut.
    """

    task: ClassVar[str] = ""
    loss_weight: ClassVar[Literal["samples", "tokens"]] = "samples"
    """What the gradients of an update are a mean over."""

    model: nn.Module

    def __init__(self, model: nn.Module, tokenizer: Any, *, max_length: int | None = None) -> None:
        self.model = model
        self.tokenizer = tokenizer
        if not getattr(tokenizer, "is_fast", False):
            raise ConfigError(f"{type(tokenizer).__name__} is no fast tokenizer, which knows the place of each token.")
        if tokenizer.pad_token_id is None:
            if tokenizer.eos_token_id is None:
                raise ConfigError(
                    "The tokenizer has neither a padding token nor an end of text: set tokenizer.pad_token."
                )
            tokenizer.pad_token = tokenizer.eos_token
        if self.config.pad_token_id is None:
            self.config.pad_token_id = tokenizer.pad_token_id
        self.max_length = max_length or _longest(model, tokenizer)
        self._graph: Any = None

    @classmethod
    def from_pretrained(
        cls: type[_Head],
        source: str | os.PathLike[str],
        *,
        labels: Sequence[str] | None = None,
        max_length: int | None = None,
        **options: Any,
    ) -> _Head:
        """Model and tokenizer from a folder or a repository's name; from the network only what is not cached.

        labels: the names of the classes, where the model has none yet. options: go to transformers' `from_pretrained`.
        Raises CheckpointError, with the remedy, where there is no such model.
        """
        transformers = needed("transformers")
        if labels is not None:
            options = {"id2label": dict(enumerate(labels)), "label2id": {n: i for i, n in enumerate(labels)}, **options}
            options.setdefault("num_labels", len(labels))
        kept = {name: options[name] for name in ("revision", "cache_dir", "token", "subfolder") if name in options}
        tokenizer = pretrained(transformers.AutoTokenizer, source, **kept)
        model = pretrained(getattr(transformers, cls.__name__), source, **options)
        return cls(model, tokenizer, max_length=max_length)

    def __repr__(self) -> str:
        count = sum(p.numel() for p in self.model.parameters())
        return f"{type(self).__name__}({self.config.model_type}, {count:,} parameters)"

    # -- what it is

    @property
    def config(self) -> Any:
        """The model's configuration, as transformers has it."""
        return self.model.config

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes, in order; of no meaning for heads without classes."""
        names = self.config.id2label
        return tuple(str(names[i]) for i in sorted(names))

    @property
    def graph(self) -> Any:
        """`fl.Graph.of(model)`: label paths, freezing, observation, drawing."""
        if self._graph is None or self._graph.module is not self.model:
            self._graph = Graph.of(self.model)
        return self._graph

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    # -- training

    def encode(self, samples: Any) -> Encoded:
        """Samples as `setup_head` takes them, tokenised once. An `Encoded` is given back as it is."""
        return samples if isinstance(samples, Encoded) else self._encode(list(samples))

    def compute_loss(self, encodings: Mapping[str, Tensor], labels: Any = None) -> Tensor:
        """The mean loss, (), over what is labelled: transformers' own. `labels` may be among the encodings."""
        given = dict(encodings)
        if labels is not None:
            given.update(self._labels_as_inputs(labels))
        return self.train_fn(self.model, given)

    @staticmethod
    def train_fn(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        """The mean loss of a batch with labels, for `trainer.train_step` and the builder."""
        loss = getattr(model(**batch), "loss", None)
        if loss is None:
            raise TrainingError(f"{type(model).__name__} gave no loss for a batch of {', '.join(batch)}: no labels?")
        return loss  # type: ignore[no-any-return]

    def metrics(self, model: nn.Module, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """For `trainer.evaluate`: the loss."""
        return {"loss": self.train_fn(model, batch)}

    def builder(self, optimizer: Callable[[Iterator[nn.Parameter]], Optimizer], samples: Any) -> TrainerBuilder:
        """`Trainer.builder` of this head, with what `Trainer.setup_head` presets."""
        return (
            Trainer.builder(lambda: self.model, optimizer, self.train_fn)
            .dataset(self.encode(samples))
            .settings(group_by_length=True, loss_weight=self.loss_weight)
            .callbacks(*self.callbacks())
        )

    def callbacks(self) -> list[Callback]:
        """What `setup_head` adds: the run's folder gets all that is needed beside the weights to export them."""
        return [_Describe(self)]

    def checkpoint_gradients(self) -> None:
        """Compute activations again in the backward pass instead of keeping them: less memory, about a third slower."""
        model: Any = self.model
        enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
        enable({"use_reentrant": False})

    # -- LoRA

    def add_lora(self, rank: int = 8, *, alpha: float = 16, dropout: float = 0.0, **options: Any) -> None:
        """Freeze the model and train low-rank adapters (peft) of all its linear layers, and a classifier's own weights.

        options: further fields of `peft.LoraConfig`, such as `target_modules`. Before the optimizer is made.
        """
        self.model = lora.added(self.model, self.task, r=rank, lora_alpha=alpha, lora_dropout=dropout, **options)

    def save_adapters(self, folder: str | os.PathLike[str]) -> Path:
        """Only the adapters, as peft has them."""
        return lora.save(self.model, folder)

    def load_adapters(self, folder: str | os.PathLike[str]) -> None:
        """Put saved adapters around the model; they can be trained further."""
        self.model = lora.loaded(self.model, folder)

    # -- inside

    def _encode(self, samples: list[Any]) -> Encoded:
        raise TrainingError(f"{type(self).__name__} has no labels to train on: choose a head for a task.")

    def _labels_as_inputs(self, labels: Any) -> dict[str, Tensor]:
        return {"labels": labels}

    def _tokens(self, *texts: Any, **options: Any) -> Any:
        return self.tokenizer(*texts, **{"truncation": True, "max_length": self.max_length, **options})

    def _columns(self, encodings: Any) -> dict[str, list[list[int]]]:
        """The model's sequences; the mask comes from the lengths."""
        names = ("input_ids", "token_type_ids")
        return {name: encodings[name] for name in names if name in encodings}

    @property
    def _pads(self) -> dict[str, int]:
        return {"input_ids": self.tokenizer.pad_token_id, "labels": -100}

    @torch.inference_mode()
    def _outputs(self, encodings: Any, batch_size: int) -> Iterator[tuple[list[int], Any, Tensor]]:
        """In evaluation mode, of batches of similar length: which samples, what the model gives, the mask."""
        data = Encoded(self._columns(encodings), pads=self._pads)
        was = self.model.training
        self.model.eval()
        try:
            for index in torch.split(data.lengths.argsort(descending=True, stable=True), batch_size):
                batch = {name: values.to(self.device) for name, values in data.fetch(index).items()}
                yield index.tolist(), self.model(**batch), batch["attention_mask"]
        finally:
            self.model.train(was)


class _Describe(Callback):
    """Writes `head/` into the run's folder."""

    def __init__(self, head: Head) -> None:
        self._head = head

    def on_fit_start(self, state: FitState, control: Control) -> None:
        from flodl.hf.export import describe

        if state.folder is not None:
            describe(self._head, state.folder / "head")


def _longest(model: nn.Module, tokenizer: Any) -> int:
    """Tokens that both can take: RoBERTa and its kin count positions from behind the padding token's number."""
    positions = getattr(model.config, "max_position_embeddings", None) or _NO_LIMIT
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None:
            positions -= int(module.padding_idx) + 1
            break
    longest = min(positions, tokenizer.model_max_length)
    return 512 if longest >= _NO_LIMIT else int(longest)


def pairs(samples: Sequence[Any], *names: tuple[str, ...]) -> Iterator[tuple[Any, ...]]:
    """Each sample as a tuple: it is one already, or a dict with one of each tuple of names. Raises DataError else."""
    for number, sample in enumerate(samples):
        if isinstance(sample, Mapping):
            found = [next((n for n in options if n in sample), None) for options in names]
            if None in found:
                missing = " or ".join(map(repr, names[found.index(None)]))
                raise DataError(f"Sample {number} has no {missing}; it has {', '.join(map(repr, sample))}.")
            yield tuple(sample[name] for name in found)
        elif isinstance(sample, (tuple, list)) and len(sample) == len(names):
            yield tuple(sample)
        else:
            wanted = ", ".join(options[0] for options in names)
            raise DataError(f"Sample {number} is {type(sample).__name__}; it must be ({wanted}), or a dict of these.")
