"""Models of Hugging Face's transformers: `hf:FOLDER_OR_NAME`, from a configuration or a checkpoint in safetensors."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .deferred import Record

PREFIX = "hf:"
DEFAULT_LENGTH = 128
NOT_COUNTED = -100
"""The target that torch's cross entropy leaves out."""
OPTIONS = ("length", "class", "inputs", "loss")
_WEIGHTS, _INDEX, _PICKLED = "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"
_BESIDE = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "tokenizer.model"),
    *("vocab.json", "vocab.txt", "merges.txt", "spiece.model", "chat_template.jinja", "preprocessor_config.json"),
)
_TEXTS = ("attention_mask", "token_type_ids")


class HuggingFault(ValueError):
    """A model that transformers does not know, or a checkpoint that is not its own; one line."""


@dataclass(frozen=True)
class Hugging:
    """A model of transformers with example inputs, as a user's function returns it.

    Attributes:
        source: a folder with `config.json` and, if there are weights, `model.safetensors` in one or several files; or a
            name that transformers fetches.
        kind: its class. length: words a sample. inputs: names of what it takes beside words.
        own_loss: its own loss of `labels`, instead of the cross entropy of what it says.
    """

    source: str
    kind: str
    length: int
    inputs: tuple[str, ...] = ()
    own_loss: bool = False

    def __call__(self) -> tuple[nn.Module, dict[str, Tensor]]:
        config = _config(self.source)
        module: nn.Module = _class(self.kind)(config)
        return module, self._example(module, config)

    def _example(self, module: Any, config: Any) -> dict[str, Tensor]:
        if module.main_input_name == "pixel_values":
            size, channels = config.image_size, config.num_channels
            sides = (size, size) if isinstance(size, int) else tuple(size)
            found, labels = {"pixel_values": torch.zeros(2, channels, *sides)}, torch.ones(2, dtype=torch.long)
        elif module.main_input_name == "input_ids":
            words = torch.ones(2, self.length, dtype=torch.long)
            decoder = {"decoder_input_ids": words.clone()} if config.is_encoder_decoder else {}
            found = {"input_ids": words, **{name: words.clone() for name in self.inputs}, **decoder}
            labels = words[:, 0].clone() if "Sequence" in self.kind else words.clone()
        else:
            raise HuggingFault(f"{self.kind} takes {module.main_input_name}: give a function that makes such inputs")
        return {**found, "labels": labels} if self.own_loss else found

    @property
    def data(self) -> str | None:
        """What comes with the interpreter, where it fits."""
        config = _config(self.source)
        if "ImageClassification" in self.kind and isinstance(config.image_size, int):
            return f"random-images:{config.num_channels}x{config.image_size}/{config.num_labels}"
        text = "CausalLM" in self.kind or "LMHead" in self.kind
        fits = text and not self.inputs and not self.own_loss and config.vocab_size >= 256
        return f"stdlib:{self.length}" if fits else None

    def counted(self, targets: Tensor) -> Tensor:
        """How many the loss is the mean of: those that are not -100, without the first ones where it shifts them."""
        shifted = self.own_loss and targets.dim() > 1 and ("CausalLM" in self.kind or "LMHead" in self.kind)
        return ((targets[:, 1:] if shifted else targets) != NOT_COUNTED).sum()

    def fill(self, module: nn.Module, record: Record | None) -> None:
        """Gives the module the weights of its checkpoint, if there is one; see `exported.Loadable`.

        Raises HuggingFault: it has not all of them, or of other shapes.
        """
        weights = Weights.of(self.source)
        if weights is None:
            return
        names: dict[int, list[str]] = {}
        state = module.state_dict(keep_vars=True)
        for name, tensor in state.items():
            names.setdefault(id(tensor), []).append(name)
        weights = weights.renamed(module)
        for alike in names.values():
            target = state[alike[0]]
            read = weights.reader(alike, str(getattr(module, "base_model_prefix", "")), target)
            if record is None:
                target.detach().copy_(read())
            else:
                record.give(target, read)

    def write_beside(self, folder: Path) -> None:
        """What `from_pretrained` reads beside the weights: the configuration, and the tokenizer where there is one."""
        with _told():
            config = _transformers().AutoConfig.from_pretrained(self.source)
            config.architectures = [self.kind]
            config.save_pretrained(folder)
        for name in _BESIDE:
            if path := _file(self.source, name):
                shutil.copyfile(path, folder / name)


@dataclass(frozen=True)
class Weights:
    """A checkpoint: of every tensor the file, and the name there, by the name that the module has it under."""

    source: str
    files: Mapping[str, tuple[str, str]]

    @classmethod
    def of(cls, source: str) -> Weights | None:
        """That of a folder or name; None: there is a configuration alone. Raises HuggingFault."""
        from safetensors import SafetensorError, safe_open

        try:
            if index := _file(source, _INDEX):
                parts: dict[str, str] = json.loads(Path(index).read_text())["weight_map"]
                paths = {part: _file(source, part) for part in set(parts.values())}
                if missing := sorted(part for part, path in paths.items() if path is None):
                    raise HuggingFault(f"{source} has no {missing[0]}, which its {_INDEX} names")
                return cls(source, {name: (str(paths[part]), name) for name, part in parts.items()})
            if whole := _file(source, _WEIGHTS):
                with safe_open(whole, framework="pt") as tensors:
                    return cls(source, {name: (whole, name) for name in tensors.keys()})  # noqa: SIM118
        except (SafetensorError, KeyError, AttributeError, json.JSONDecodeError) as error:
            raise HuggingFault(f"{source}: its weights cannot be read ({_first_line(error)})") from None
        if _file(source, _PICKLED):
            raise HuggingFault(f"{source} has its weights in {_PICKLED}, reading which can run code: save safetensors")
        return None

    def renamed(self, module: nn.Module) -> Weights:
        """Under the names that this version of transformers has for what is saved under older ones."""
        try:
            from transformers.conversion_mapping import get_model_conversion_mapping
            from transformers.core_model_loading import WeightRenaming, rename_source_key
        except ImportError:  # before version 5 the names are those that are saved
            return self
        found = get_model_conversion_mapping(module)
        renamings = [one for one in found if isinstance(one, WeightRenaming)]
        return Weights(self.source, {rename_source_key(n, renamings, [])[0]: at for n, at in self.files.items()})

    def reader(self, alike: list[str], prefix: str, target: Tensor) -> Any:
        """What reads the tensor of one of these names. Raises HuggingFault: there is none, or of another shape."""
        from safetensors import safe_open

        name = next((name for own in alike for name in _spelled(own, prefix) if name in self.files), None)
        if name is None:
            raise HuggingFault(f"{self.source} is a checkpoint of another model: it has no {alike[0]}")
        path, there = self.files[name]
        with safe_open(path, framework="pt") as tensors:
            shape = tuple(tensors.get_slice(there).get_shape())
        if shape != tuple(target.shape):
            raise HuggingFault(
                f"{self.source} is a checkpoint of another model: its {name} is {shape}, not {tuple(target.shape)}"
            )
        return partial(_read, path, there, target.dtype)


def _spelled(name: str, prefix: str) -> Iterator[str]:
    """How a checkpoint may call it: with a head it is saved behind the model's name, without one it is not."""
    yield name
    if prefix:
        yield name.removeprefix(f"{prefix}.")
        yield f"{prefix}.{name}"


def _read(path: str, name: str, dtype: torch.dtype) -> Tensor:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as tensors:
        found: Tensor = tensors.get_tensor(name)
    return found.to(dtype, copy=True)


@cache
def hugging(name: str) -> Hugging:
    """The model of `hf:SOURCE[,length=N][,class=NAME][,inputs=NAME+NAME][,loss=own]`. Raises HuggingFault."""
    source, *rest = name.removeprefix(PREFIX).split(",")
    given = dict(part.partition("=")[::2] for part in rest)
    if unknown := sorted(given.keys() - set(OPTIONS)):
        raise HuggingFault(f"{unknown[0]!r} is none of its options: {', '.join(OPTIONS)}")
    length = given.get("length", "")
    if "length" in given and not (length.isdecimal() and int(length) > 0):
        raise HuggingFault(f"length is a number of words, not {length!r}")
    if given.get("loss", "own") != "own":
        raise HuggingFault(f"loss is own or not given, not {given['loss']!r}")
    inputs = tuple(filter(None, given.get("inputs", "").split("+")))
    if odd := sorted(set(inputs) - set(_TEXTS)):
        raise HuggingFault(f"inputs are of {', '.join(_TEXTS)}, not {odd[0]!r}")
    config = _config(source)
    most = getattr(config, "max_position_embeddings", None) or DEFAULT_LENGTH
    kind = given.get("class") or _kind(source, config)
    _class(kind)
    return Hugging(source, kind, int(length or min(most, DEFAULT_LENGTH)), inputs, "loss" in given)


def _transformers() -> Any:
    try:
        import transformers
    except ModuleNotFoundError:
        raise HuggingFault("it needs transformers: pip install 'contraflow[transformers]'") from None
    return transformers


@contextmanager
def _told() -> Iterator[None]:
    """What transformers raises, in a line."""
    try:
        yield
    except HuggingFault:
        raise
    except Exception as error:
        raise HuggingFault(f"transformers: {_first_line(error)}") from None


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


@cache
def _config(source: str) -> Any:
    with _told():
        config = _transformers().AutoConfig.from_pretrained(source)
    config.use_cache = False
    return config


@cache
def _file(source: str, name: str) -> str | None:
    with _told():
        _transformers()
        from transformers.utils import cached_file

        found: str | None = cached_file(source, name, _raise_exceptions_for_missing_entries=False)
    return found


@cache
def _class(kind: str) -> Any:
    found = getattr(_transformers(), kind, None)
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise HuggingFault(f"transformers has no class {kind!r}")
    return found


def _kind(source: str, config: Any) -> str:
    """What it was saved as, or what such a model is trained for."""
    transformers = _transformers()
    if config.architectures:
        return str(config.architectures[0])
    tasks = ("Seq2SeqLM", "MaskedLM", "CausalLM", "ImageClassification")
    for task in tasks[0 if config.is_encoder_decoder else 1 :]:
        mapping = getattr(transformers, f"AutoModelFor{task}")._model_mapping
        if type(config) in mapping:
            found = mapping[type(config)]
            return str((found[0] if isinstance(found, tuple) else found).__name__)
    raise HuggingFault(f"{source}: a {config.model_type} is trained in ways of its own: say class=NAME")
