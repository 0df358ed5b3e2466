"""Modules that this project did not write, on small configurations, as their users would bring them.

Each function is all that a user writes: it returns the module and example inputs. Random data of their shapes and,
where the module has no loss of its own, a loss stand beside it. Nothing drops out: plain torch is compared with.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WORDS, LENGTH = 64, 16
_TEXT = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 64}
_CAUSAL = {**_TEXT, "num_key_value_heads": 2, "vocab_size": WORDS, "max_position_embeddings": 32, "use_cache": False}

Made = tuple[nn.Module, Any]
Build = Callable[[], Made]


@dataclass(frozen=True)
class Drawn:
    """Random inputs: by name "words", "mask" (some at the end are not there), "steps" (of a diffusion) or "noise", and
    sizes behind the samples. `target`: likewise, or "classes".
    """

    name: str
    inputs: tuple[tuple[str, str, tuple[int, ...]], ...]
    target: tuple[str, tuple[int, ...]]

    def batch(self, seed: int, step: int, micro_batch: int, size: int) -> tuple[Any, Tensor]:
        """Inputs by name, one without a name alone; and targets. The same at every step, so that losses fall."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(micro_batch)
            found = {name: _drawn(kind, (size, *shape)) for name, kind, shape in self.inputs}
            kind, shape = self.target
            return found.get("", found), _drawn(kind, (size, *shape))


CLASSES = 5


def _drawn(kind: str, shape: tuple[int, ...]) -> Tensor:
    if kind == "noise":
        return torch.randn(shape)
    if kind == "mask":
        return (torch.arange(shape[1]) < torch.randint(4, shape[1] + 1, (shape[0], 1))).long()
    return torch.randint(2, WORDS, shape) if kind == "words" else torch.randint(CLASSES, shape)


TEXT = Drawn("texts", (("input_ids", "words", (LENGTH,)), ("attention_mask", "mask", (LENGTH,))), ("words", (LENGTH,)))
PAIRS = Drawn("pairs", (*TEXT.inputs, ("decoder_input_ids", "words", (LENGTH,))), TEXT.target)
PICTURES = Drawn("pictures", (("pixel_values", "noise", (3, 16, 16)),), ("classes", ()))
IMAGES = Drawn("images", (("", "noise", (3, 16, 16)),), ("classes", ()))
MASKS = Drawn("masks", (("", "noise", (3, 16, 16)),), ("classes", (16, 16)))
NOISED = Drawn("noised", (("sample", "noise", (3, 16, 16)), ("timestep", "classes", ())), ("noise", (3, 16, 16)))
LABELLED = Drawn(
    "labelled",
    (("hidden_states", "noise", (4, 8, 8)), ("timestep", "classes", ()), ("class_labels", "classes", ())),
    ("noise", (4, 8, 8)),
)
CAPTIONED = Drawn(
    "captioned",
    (("input_ids", "words", (LENGTH,)), ("pixel_values", "noise", (3, 16, 16)), ("attention_mask", "mask", (LENGTH,))),
    ("classes", ()),
)
SOUNDS = Drawn(
    "sounds", (("input_features", "noise", (8, 32)), ("decoder_input_ids", "words", (LENGTH,))), ("words", (LENGTH,))
)
SEQUENCES = Drawn(
    "sequences", (("src", "noise", (LENGTH, 32)), ("tgt", "noise", (LENGTH, 32))), ("noise", (LENGTH, 32))
)
LINES = Drawn("lines", (("", "words", (LENGTH,)),), ("words", (LENGTH,)))


def contrastive(scores: Tensor, _: Tensor) -> Tensor:
    """CLIP's (arXiv:2103.00020) of (n, n) scores: pairs belong together."""
    pairs = torch.arange(scores.shape[0], device=scores.device)
    return (F.cross_entropy(scores, pairs) + F.cross_entropy(scores.T, pairs)) / 2


def spoken(scores: Tensor, words: Tensor) -> Tensor:
    """Cross entropy of (n, t, WORDS) scores."""
    return F.cross_entropy(scores.flatten(0, 1), words.flatten())


@dataclass(frozen=True)
class Case:
    """A module: its kind, whose it is, what to train it on, and the loss where it has none of its own."""

    kind: str
    package: str
    data: Drawn
    loss: Callable[[Any, Tensor], Tensor] | None = None


CASES: dict[str, Build] = {}


def case(kind: str, package: str, data: Drawn, loss: Callable[[Any, Tensor], Tensor] | None = None) -> Any:
    """Makes a function one of the cases."""

    def noted(build: Build) -> Build:
        build.data, build.case = data, Case(kind, package, data, loss)  # type: ignore[attr-defined]
        if loss is not None:
            build.loss = loss  # type: ignore[attr-defined]
        CASES[build.__name__] = build
        return build

    return noted


def of(name: str) -> Case:
    """What is known of a case."""
    found: Case = CASES[name].case  # type: ignore[attr-defined]
    return found


def lines(name: str) -> int:
    """That a user writes: those of the function."""
    written = inspect.getsource(CASES[name]).splitlines()
    return sum(bool(line.strip()) and not line.strip().startswith(("@", '"""')) for line in written)


def example(data: Drawn, **more: Any) -> dict[str, Any]:
    """Two samples by name; `labels` of them where the module's own loss is wanted."""
    inputs, labels = data.batch(0, 0, 0, 2)
    return {**inputs, **{name: labels if value is ... else value for name, value in more.items()}}


def given(name: str, inputs: Any, targets: Tensor) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """(arguments, keyword arguments) of the plain module for a micro-batch."""
    if not isinstance(inputs, dict):
        return (inputs,), {}
    return (), inputs if of(name).loss else {**inputs, "labels": targets}


@case("decoder", "transformers", TEXT)
def gpt2() -> Made:
    """The head tied to the embedding."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=4, n_embd=32, n_head=2, vocab_size=WORDS, n_positions=32, use_cache=False,
                        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)  # fmt: skip
    return GPT2LMHeadModel(config), example(TEXT, labels=...)


@case("decoder", "transformers", TEXT)
def llama() -> Made:
    """Grouped queries, rotary tables."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**_CAUSAL)), example(TEXT, labels=...)


@case("encoder", "transformers", TEXT)
def bert() -> Made:
    """Masked words."""
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(**_TEXT, vocab_size=WORDS, max_position_embeddings=32, hidden_dropout_prob=0.0,
                        attention_probs_dropout_prob=0.0)  # fmt: skip
    return BertForMaskedLM(config), example(TEXT, labels=...)


@case("encoder", "transformers", PICTURES)
def vit() -> Made:
    """Pictures in patches."""
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(**_TEXT, image_size=16, patch_size=4, num_labels=CLASSES, hidden_dropout_prob=0.0,
                       attention_probs_dropout_prob=0.0)  # fmt: skip
    return ViTForImageClassification(config), example(PICTURES, labels=...)


@case("encoder-decoder", "transformers", PAIRS)
def t5() -> Made:
    """Relative positions that the first block of each side makes for all."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(num_layers=2, d_model=32, d_ff=64, num_heads=4, d_kv=8, vocab_size=WORDS, dropout_rate=0.0,
                      use_cache=False, decoder_start_token_id=0, pad_token_id=0)  # fmt: skip
    return T5ForConditionalGeneration(config), example(PAIRS, labels=...)


@case("encoder-decoder", "torch", SEQUENCES, F.mse_loss)
def transformer() -> Made:
    """torch.nn.Transformer itself."""
    return nn.Transformer(32, 4, 2, 2, 64, dropout=0.0, batch_first=True), example(SEQUENCES)


@case("two towers", "transformers", CAPTIONED, contrastive)
def clip() -> Made:
    """Pictures and their captions."""
    from transformers import CLIPConfig, CLIPModel

    text = {**_TEXT, "num_hidden_layers": 2, "vocab_size": WORDS, "max_position_embeddings": 32, "eos_token_id": 1}
    picture = {**_TEXT, "num_hidden_layers": 2, "image_size": 16, "patch_size": 4}
    return CLIPModel(CLIPConfig(text_config=text, vision_config=picture, projection_dim=16)), example(CAPTIONED)


@case("mixture", "transformers", TEXT)
def mixtral() -> Made:
    """Every token goes to two of four experts."""
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(**_CAUSAL, num_local_experts=4, num_experts_per_tok=2)
    return MixtralForCausalLM(config), example(TEXT, labels=...)


@case("U-Net", "diffusers", NOISED, F.mse_loss)
def unet2d() -> Made:
    """A diffusion's noise, told how far it is."""
    from diffusers import UNet2DModel

    module = UNet2DModel(16, block_out_channels=(8, 16), down_block_types=("DownBlock2D", "AttnDownBlock2D"),
                         up_block_types=("AttnUpBlock2D", "UpBlock2D"), layers_per_block=1, norm_num_groups=4,
                         attention_head_dim=4)  # fmt: skip
    return module, example(NOISED)


@case("convolutions", "monai", IMAGES, F.cross_entropy)
def densenet() -> Made:
    """Every layer reads all before it; statistics of BatchNorm."""
    from monai.networks.nets import DenseNet

    return DenseNet(2, 3, CLASSES, 8, 4, (2, 2)), torch.zeros(2, 3, 16, 16)


@case("decoder", "x-transformers", LINES, spoken)
def x_decoder() -> Made:
    """Rotary positions, gated perceptrons, one head of keys."""
    from x_transformers import Decoder, TransformerWrapper

    layers = Decoder(dim=32, depth=4, heads=4, attn_dim_head=8, rotary_pos_emb=True, ff_glu=True, attn_kv_heads=1)
    return TransformerWrapper(num_tokens=WORDS, max_seq_len=32, attn_layers=layers), torch.zeros(2, LENGTH).long()


@case("mixture", "transformers", PAIRS)
def switch() -> Made:
    """Loops over the experts that the words of a batch have met."""
    from transformers import SwitchTransformersConfig, SwitchTransformersForConditionalGeneration

    config = SwitchTransformersConfig(num_layers=2, num_sparse_encoder_layers=1, num_decoder_layers=2,
                                      num_sparse_decoder_layers=1, num_experts=4, router_jitter_noise=0.0, d_model=32,
                                      d_ff=64, num_heads=4, d_kv=8, vocab_size=WORDS, dropout_rate=0.0, use_cache=False,
                                      decoder_start_token_id=0, pad_token_id=0)  # fmt: skip
    return SwitchTransformersForConditionalGeneration(config), example(PAIRS, labels=...)


@case("decoder", "transformers", TEXT)
def qwen2() -> Made:
    """Biases, and the head tied."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    return Qwen2ForCausalLM(Qwen2Config(**_CAUSAL, tie_word_embeddings=True)), example(TEXT, labels=...)


@case("encoder-decoder", "transformers", SOUNDS)
def whisper() -> Made:
    """Sounds to words."""
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(vocab_size=WORDS, num_mel_bins=8, d_model=32, encoder_layers=2, decoder_layers=2,
                           encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=64, decoder_ffn_dim=64,
                           max_source_positions=16, max_target_positions=32, dropout=0.0, use_cache=False,
                           decoder_start_token_id=0, pad_token_id=0, bos_token_id=0, eos_token_id=1)  # fmt: skip
    return WhisperForConditionalGeneration(config), example(SOUNDS, labels=...)


@case("diffusion transformer", "diffusers", LABELLED, F.mse_loss)
def dit() -> Made:
    """Norms that are told step and class, which must not be left out at random."""
    from diffusers import DiTTransformer2DModel

    module = DiTTransformer2DModel(num_attention_heads=2, attention_head_dim=16, in_channels=4, num_layers=4,
                                   sample_size=8, patch_size=2, num_embeds_ada_norm=CLASSES)  # fmt: skip
    for block in module.transformer_blocks:
        block.norm1.emb.class_embedder.dropout_prob = 0.0
    return module, example(LABELLED)


@case("U-Net", "monai", MASKS, F.cross_entropy)
def unet() -> Made:
    """Segmentation of pictures."""
    from monai.networks.nets import UNet

    return UNet(2, 3, CLASSES, (8, 16, 32), (2, 2), num_res_units=1), torch.zeros(2, 3, 16, 16)


@case("state space", "transformers", TEXT)
def mamba() -> Made:
    """No attention: selective scans."""
    from transformers import MambaConfig, MambaForCausalLM

    config = MambaConfig(vocab_size=WORDS, hidden_size=32, state_size=4, num_hidden_layers=4, use_cache=False)
    return MambaForCausalLM(config), example(TEXT, labels=...)
