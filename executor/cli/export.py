"""`contraflow export`. Torch is imported when it runs."""

from __future__ import annotations

from pathlib import Path

import click

from ...planner.cli import say


@click.command(
    epilog="""\b
Examples:
  contraflow export checkpoints --to trained
  contraflow export checkpoints --model hf:gpt2 --to trained
  contraflow export checkpoints/step-00000100 --model mine:build --to trained.pt
"""
)
@click.argument("checkpoint", metavar="CHECKPOINT", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--to", "target", required=True, type=click.Path(path_type=Path), help="A new folder, or FILE.pt.")
@click.option("--model", metavar="MODEL", help="As for execute: of any model that is not in the registry.")
def export(checkpoint: Path, target: Path, model: str | None) -> None:
    """Write what has been trained under the names that the module itself has.

    CHECKPOINT is a folder of checkpoints, of which the newest is taken, or one of them. A folder gets model.safetensors
    (several and an index where it is large), of a model of transformers with what from_pretrained reads beside it; a
    file gets a state_dict for torch.load.
    """
    from ..run import export_weights

    for path in export_weights(checkpoint, target, model):
        say(f"wrote {path}", err=True)
