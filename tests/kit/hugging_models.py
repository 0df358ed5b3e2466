"""Models of Hugging Face's transformers, on small configurations with random weights, and data for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor, nn

WORDS, LENGTH = 64, 16
_TEXT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}


@dataclass(frozen=True)
class Texts:
    """Words, padding behind them, and labels."""

    name: str = "texts"

    def batch(self, seed: int, step: int, micro_batch: int, size: int) -> tuple[dict[str, Tensor], Tensor]:
        """(size, LENGTH) each."""
        words = torch.randint(2, WORDS, (size, LENGTH))
        there = torch.arange(LENGTH) < torch.randint(4, LENGTH + 1, (size, 1))
        return {"input_ids": words, "attention_mask": there.long()}, torch.randint(2, WORDS, (size, LENGTH))


@dataclass(frozen=True)
class Pairs(Texts):
    """The same with what a decoder has said so far."""

    name: str = "pairs"

    def batch(self, seed: int, step: int, micro_batch: int, size: int) -> tuple[dict[str, Tensor], Tensor]:
        """(size, LENGTH) each."""
        inputs, labels = super().batch(seed, step, micro_batch, size)
        return {**inputs, "decoder_input_ids": torch.nn.functional.pad(labels[:, :-1], (1, 0))}, labels


@dataclass(frozen=True)
class Pictures:
    """Noise and classes."""

    name: str = "pictures"

    def batch(self, seed: int, step: int, micro_batch: int, size: int) -> tuple[Tensor, Tensor]:
        """(size, 3, 16, 16), (size,)."""
        return torch.randn(size, 3, 16, 16), torch.randint(5, (size,))


def _with_texts(model: nn.Module) -> tuple[nn.Module, dict[str, Any]]:
    inputs, labels = Texts().batch(0, 0, 0, 2)
    return model, {**inputs, "labels": labels}


def gpt2() -> tuple[nn.Module, dict[str, Any]]:
    """With the head tied to the embedding."""
    config = transformers.GPT2Config(
        n_layer=2, n_embd=32, n_head=2, vocab_size=WORDS, n_positions=32, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0, use_cache=False,
    )  # fmt: skip
    return _with_texts(transformers.GPT2LMHeadModel(config))


def llama() -> tuple[nn.Module, dict[str, Any]]:
    """With grouped queries."""
    config = transformers.LlamaConfig(
        **_TEXT, num_key_value_heads=2, vocab_size=WORDS, max_position_embeddings=32, use_cache=False
    )
    return _with_texts(transformers.LlamaForCausalLM(config))


def qwen() -> tuple[nn.Module, dict[str, Any]]:
    """With biases at queries, keys and values, and the head tied."""
    config = transformers.Qwen2Config(
        **_TEXT, num_key_value_heads=2, vocab_size=WORDS, max_position_embeddings=32, use_cache=False,
        tie_word_embeddings=True,
    )  # fmt: skip
    return _with_texts(transformers.Qwen2ForCausalLM(config))


def bert() -> tuple[nn.Module, dict[str, Any]]:
    """Masked words."""
    config = transformers.BertConfig(
        **_TEXT, vocab_size=WORDS, max_position_embeddings=32, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return _with_texts(transformers.BertForMaskedLM(config))


def t5() -> tuple[nn.Module, dict[str, Any]]:
    """What its decoder reads is an input of its own: the labels are for the loss alone."""
    config = transformers.T5Config(
        num_layers=2, d_model=32, d_ff=64, num_heads=4, d_kv=8, vocab_size=WORDS, dropout_rate=0.0, use_cache=False,
        decoder_start_token_id=0, pad_token_id=0,
    )  # fmt: skip
    inputs, labels = Pairs().batch(0, 0, 0, 2)
    return transformers.T5ForConditionalGeneration(config), {**inputs, "labels": labels}


def vit() -> tuple[nn.Module, dict[str, Any]]:
    """Pictures in patches."""
    config = transformers.ViTConfig(
        **_TEXT, image_size=16, patch_size=4, num_labels=5, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    pixels, labels = Pictures().batch(0, 0, 0, 2)
    return transformers.ViTForImageClassification(config), {"pixel_values": pixels, "labels": labels}


for _function in (gpt2, llama, qwen, bert):
    _function.data = Texts()  # type: ignore[attr-defined]
t5.data = Pairs()  # type: ignore[attr-defined]
vit.data = Pictures()  # type: ignore[attr-defined]
