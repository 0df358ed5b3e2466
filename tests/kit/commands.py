"""`contraflow` run in this process."""

from __future__ import annotations

from click.testing import CliRunner, Result

from contraflow.__main__ import cli

CLUSTER = '[[nodes]]\ndevices = 2\ndevice = "toy"\n[devices.toy]\nmemory = "1GiB"\n'


def run(*arguments: object) -> Result:
    """Runs `contraflow` in this process."""
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def refused(*arguments: object) -> str:
    """Runs a command that is bad input: exit code 2, nothing on stdout, one line on stderr, which is returned."""
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    return result.stderr
