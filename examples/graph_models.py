"""Models that are no chains: a U-Net, two towers, an encoder with a decoder.

Every layer names what it takes: layers before it, or the data's inputs. Try one with

    contraflow profile graph_models:unet --micro-batch-size 8 -o model.json
    contraflow plan model.json --cluster cluster-2cpu.toml --micro-batches 4 -o plan.json
    contraflow execute plan.json --model graph_models:unet --steps 20
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from contraflow.models import LayeredModel, LayerSpec, load


@dataclass(frozen=True)
class Pixels:
    """Handwritten digits with some pixels wiped out, and which pixels are ink."""

    name: str = "pixels"

    def batch(self, seed: int, step: int, micro_batch: int, size: int) -> tuple[Tensor, Tensor]:
        """(size, 1, 8, 8) images, (size, 8, 8) classes."""
        images, _ = load("digits-images").batch(seed, step, micro_batch, size)
        wiped = images * (torch.rand(images.shape) > 0.2)
        return wiped, (images[:, 0] > 0).long()


class Down(nn.Module):
    """Two convolutions; `halves`: on half as many rows and columns."""

    def __init__(self, inputs: int, outputs: int, halves: bool) -> None:
        super().__init__()
        self.pool = nn.MaxPool2d(2) if halves else nn.Identity()
        self.inner = nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU())
        self.outer = nn.Sequential(nn.Conv2d(outputs, outputs, 3, padding=1), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        """(n, inputs, h, w) -> (n, outputs, h, w)."""
        return self.outer(self.inner(self.pool(x)))


class Up(nn.Module):
    """Twice as many rows and columns, beside what was there on the way down."""

    def __init__(self, inputs: int, skipped: int, outputs: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Conv2d(inputs + skipped, outputs, 3, padding=1), nn.ReLU())

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        """(n, inputs, h, w), (n, skipped, 2h, 2w) -> (n, outputs, 2h, 2w)."""
        return self.inner(torch.cat([F.interpolate(x, scale_factor=2.0), skip], 1))


def _conv(inputs: int, outputs: int) -> nn.Module:
    return nn.Conv2d(inputs, outputs, 1)


def unet(width: int = 8) -> LayeredModel:
    """A U-Net (arXiv:1505.04597) on 8x8 images: skips from every level down to the same level up."""
    layers = (
        LayerSpec("down1", partial(Down, 1, width, False)),
        LayerSpec("down2", partial(Down, width, 2 * width, True)),
        LayerSpec("down3", partial(Down, 2 * width, 4 * width, True)),
        LayerSpec("up2", partial(Up, 4 * width, 2 * width, 2 * width), inputs=("down3", "down2")),
        LayerSpec("up1", partial(Up, 2 * width, width, width), inputs=("up2", "down1")),
        LayerSpec("head", partial(_conv, width, 2)),
    )
    return LayeredModel("graph_models:unet", layers, F.cross_entropy, Pixels())


WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
LONGEST = max(map(len, WORDS))


@dataclass(frozen=True)
class NamedDigits:
    """Handwritten digits, and their names in letters."""

    name: str = "named digits"

    def batch(self, seed: int, step: int, micro_batch: int, size: int) -> tuple[dict[str, Tensor], Tensor]:
        """(size, 64) pixels and (size, letters) bytes, 0 behind a name's end; which digit each is."""
        pixels, digits = load("digits").batch(seed, step, micro_batch, size)
        table = torch.tensor([list(word.encode().ljust(LONGEST, b"\0")) for word in WORDS])
        return {"image": pixels, "text": table[digits]}, digits


class Letters(nn.Module):
    """Embeddings of letters, and which of them are there."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(128, width)

    def forward(self, text: Tensor) -> tuple[Tensor, Tensor]:
        """(n, letters) -> (n, letters, width), (n, letters) Booleans."""
        return self.table(text), text != 0


class Mean(nn.Module):
    """The mean over the letters that are there, and a linear layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.out = nn.Linear(width, width)

    def forward(self, letters: Tensor, there: Tensor) -> Tensor:
        """(n, letters, width), (n, letters) -> (n, width)."""
        weights = there.to(letters.dtype)[..., None]
        return self.out((letters * weights).sum(1) / weights.sum(1))


class Together(nn.Module):
    """Both towers' outputs on one sphere, with CLIP's temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, image: Tensor, text: Tensor) -> tuple[Tensor, Tensor]:
        """Two of (n, width)."""
        return F.normalize(image, dim=1) * self.scale.exp(), F.normalize(text, dim=1)


def contrastive(found: tuple[Tensor, Tensor], digits: Tensor) -> Tensor:
    """CLIP's loss (arXiv:2103.00020), where all pairs of one digit belong together."""
    image, text = found
    scores = image @ text.T
    same = (digits[:, None] == digits[None, :]).to(scores.dtype)
    wanted = same / same.sum(1, keepdim=True)
    return (F.cross_entropy(scores, wanted) + F.cross_entropy(scores.T, wanted)) / 2


def _dense(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, outputs), nn.GELU())


def towers(width: int = 32) -> LayeredModel:
    """Two towers as in CLIP: one for images, one for texts, which a mask says the ends of."""
    layers = (
        LayerSpec("pixels", partial(_dense, 64, width), inputs=("input.image",)),
        LayerSpec("image1", partial(_dense, width, width)),
        LayerSpec("image2", partial(_dense, width, width)),
        LayerSpec("letters", partial(Letters, width), inputs=("input.text",), outputs=("embedded", "there")),
        LayerSpec("text1", partial(_dense, width, width), inputs=("letters.embedded",)),
        LayerSpec("text2", partial(Mean, width), inputs=("text1", "letters.there")),
        LayerSpec("together", Together, inputs=("image2", "text2"), outputs=("image", "text")),
    )
    return LayeredModel("graph_models:towers", layers, contrastive, NamedDigits())


@dataclass(frozen=True)
class Reversed:
    """Numbers below `symbols`, 0 behind their end, and the same the other way round."""

    length: int = 8
    symbols: int = 16
    name: str = "reversed"

    def batch(self, seed: int, step: int, micro_batch: int, size: int) -> tuple[dict[str, Tensor], Tensor]:
        """What is read, what has been said so far, what is to be said: (size, length) each."""
        there = torch.arange(self.length) < torch.randint(2, self.length + 1, (size, 1))
        read = torch.randint(2, self.symbols, (size, self.length)) * there
        said = read.flip(1)
        return {"read": read, "said": F.pad(said[:, :-1], (1, 0), value=1)}, said


class Embed(nn.Module):
    """Embeddings of symbols and positions, and which are padding."""

    def __init__(self, symbols: int, length: int, width: int) -> None:
        super().__init__()
        self.symbols, self.places = nn.Embedding(symbols, width), nn.Embedding(length, width)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(n, t) -> (n, t, width), (n, t) Booleans."""
        return self.symbols(x) + self.places.weight, x == 0


class Say(Embed):
    """The decoder's embeddings: what it has said so far has no padding."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        """(n, t) -> (n, t, width)."""
        return self.symbols(x) + self.places.weight


def _encoder(width: int, heads: int) -> nn.Module:
    return EncoderBlock(nn.TransformerEncoderLayer(width, heads, 2 * width, 0.1, batch_first=True))


class EncoderBlock(nn.Module):
    """torch's, with the padding as its second argument."""

    def __init__(self, inner: nn.TransformerEncoderLayer) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        """(n, t, width), (n, t) -> (n, t, width)."""
        return self.inner(x, src_key_padding_mask=padding)


def _decoder(width: int, heads: int) -> nn.Module:
    return DecoderBlock(nn.TransformerDecoderLayer(width, heads, 2 * width, 0.1, batch_first=True))


class DecoderBlock(nn.Module):
    """torch's, which takes what the encoder has found and the padding of that."""

    def __init__(self, inner: nn.TransformerDecoderLayer) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor, memory: Tensor, padding: Tensor) -> Tensor:
        """(n, t, width), (n, s, width), (n, s) -> (n, t, width)."""
        before = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        return self.inner(x, memory, tgt_mask=before, memory_key_padding_mask=padding)


def _scores(width: int, symbols: int) -> nn.Module:
    return nn.Linear(width, symbols)


def _sequence_loss(scores: Tensor, said: Tensor) -> Tensor:
    return F.cross_entropy(scores.flatten(0, 1), said.flatten())


def translator(width: int = 16, heads: int = 2, blocks: int = 2) -> LayeredModel:
    """An encoder with a decoder (arXiv:1706.03762): its last output, and the padding, go to every decoder block."""
    data = Reversed()
    layers = [
        LayerSpec(
            "read", partial(Embed, data.symbols, data.length, width), inputs="input.read", outputs=("x", "padding")
        )
    ]
    last = "read.x"
    for k in range(blocks):
        layers.append(LayerSpec(f"encoder{k}", partial(_encoder, width, heads), inputs=(last, "read.padding")))
        last = f"encoder{k}"
    memory = last
    layers.append(LayerSpec("say", partial(Say, data.symbols, data.length, width), inputs="input.said"))
    last = "say"
    for k in range(blocks):
        taken = (last, memory, "read.padding")
        layers.append(LayerSpec(f"decoder{k}", partial(_decoder, width, heads), inputs=taken))
        last = f"decoder{k}"
    layers.append(LayerSpec("scores", partial(_scores, width, data.symbols), inputs=last))
    return LayeredModel("graph_models:translator", tuple(layers), _sequence_loss, data)
