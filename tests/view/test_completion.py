"""Shells complete commands, schedules, models and files."""

from __future__ import annotations

import pytest
from click.shell_completion import ShellComplete

from contraflow.__main__ import cli


def completed(*words: str) -> set[tuple[str, str]]:
    """What a shell is offered for the last word: type and value."""
    found = ShellComplete(cli, {}, "contraflow", "_CONTRAFLOW_COMPLETE").get_completions(list(words[:-1]), words[-1])
    return {(item.type, item.value) for item in found}


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (("pl",), {"plan"}),
        (("plan", "--schedule", "interleaved-"), {"interleaved-zb", "interleaved-zb-half", "interleaved-zb-wide"}),
        (("plan", "--schedule", "pipeoptim"), {"pipeoptim", "pipeoptim-lookahead"}),
        (("profile", "llama-"), {"llama-7b", "llama-13b", "llama-70b", "llama-small", "llama-tiny"}),
        (("plan", "--optimizer", "ada"), {"adam", "adamw"}),
    ],
)
def test_names_are_completed(words: tuple[str, ...], values: set[str]) -> None:
    assert completed(*words) == {("plain", value) for value in values}


@pytest.mark.parametrize("command", ["check", "show", "execute", "plan", "partition"])
def test_files_are_completed_as_files(command: str) -> None:
    assert completed(command, "pl") == {("file", "pl")}
