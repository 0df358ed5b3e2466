"""`contraflow env`. Torch is imported in a process of its own only."""

from __future__ import annotations

from typing import Any

import click

from ...planner.cli import print_json


@click.command(epilog="\b\nExample:\n  contraflow env > report.txt")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def env(as_json: bool) -> None:
    """Versions, limits and devices of this machine, for a bug report.

    Environment variables are those of a fixed list; the home folder is written ~ and your name USER.
    """
    from ..measure import report

    found = report()
    if as_json:
        print_json(found)
        return
    for topic, facts in found.items():
        click.echo(topic)
        for name, fact in facts.items():
            click.echo(f"  {name.removesuffix('_bytes')}: {_said(name, fact)}")


def _said(name: str, fact: Any) -> str:
    if fact is None:
        return "-"
    if isinstance(fact, bool):
        return "yes" if fact else "no"
    if name.endswith("_bytes"):
        return f"{fact / (1 << 30):.1f} GiB"
    if isinstance(fact, list):
        return ", ".join(map(str, fact)) or "none"
    return str(fact)
