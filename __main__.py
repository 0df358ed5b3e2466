"""The command line: `contraflow COMMAND`, also `python -m contraflow COMMAND`.

The only module that knows both the planner and the executor. Commands are imported when they run, so planning
never loads torch.
"""

from __future__ import annotations

import io
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from . import __version__
from .planner.basics import InputError, one_line

if TYPE_CHECKING:
    from .planner.problem import ModelGraph


class _Entry(NamedTuple):
    module: str
    summary: str


_TORCH = ("torch", "safetensors")
"""What the extra "torch" installs; planning needs neither."""
_PLANNING = ".planner.cli.commands"
_COMMANDS = {
    "profile": _Entry(".executor.cli.profile", "Measure a model's layers on this machine: model.json."),
    "plan": _Entry(_PLANNING, "Search for the fastest plan that fits: plan.json."),
    "check": _Entry(
        ".planner.cli.commands", "Say whether a plan can be executed, and everything that is wrong if not."
    ),
    "serve": _Entry(".planner.cli.serve", "The same search, shown in a browser while it runs."),
    "show": _Entry(_PLANNING, "Draw a plan: timeline, layers, placement, operations, trace."),
    "compare": _Entry(
        ".planner.cli.commands", "Table of every named schedule and the search; or a forecast and its run."
    ),
    "partition": _Entry(".planner.cli.partition", "Cut a layer graph into stages, with a proof; no schedule."),
    "execute": _Entry(".executor.cli.execute", "Train the model with a plan, one process a device."),
    "cluster": _Entry(".executor.cli.cluster", "Describe this machine, or all of a job: cluster.toml."),
    "export": _Entry(".executor.cli.export", "Write a checkpoint's weights as others read them: safetensors."),
    "calibrate": _Entry(_PLANNING, "Fold the times of runs into a model's layer costs."),
    "env": _Entry(".executor.cli.env", "What a bug report should say of this machine."),
}
_EPILOG = """\b
Example:
  contraflow profile gpt-small -o model.json
  contraflow plan model.json --cluster cluster.toml --micro-batches 8 -o plan.json
  contraflow execute plan.json --steps 40

Exit codes: 0 done, 1 infeasible, failed or check failed, 2 bad input, 128 and its number: ended by a signal.
"""


class CommandLine(click.Group):
    """Loads commands on first use and turns every error of ours into one line and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order they are used."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports the command's module; None if there is no such command."""
        entry = _COMMANDS.get(cmd_name)
        if entry is None:
            return None
        command = getattr(import_module(entry.module, __package__), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The summaries, without importing anything."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in _COMMANDS.items()])

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **rest: Any,
    ) -> Any:
        """As click.Group.main; errors end the process with one line on stderr unless not standalone."""
        run: Callable[[], Any] = partial(super().main, args, prog_name, complete_var, False, **rest)
        if not standalone_mode:
            return run()
        try:
            code: object = run()
        except (click.Abort, KeyboardInterrupt) as error:
            ending = error.__cause__ or error  # click makes an Abort of either
            _fail(str(ending) or "interrupted", 128 + getattr(ending, "number", signal.SIGINT))
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            sys.exit(2)
        except click.UsageError as error:
            where = error.ctx.command_path if error.ctx is not None else "contraflow"
            _fail(f"{error.format_message()} (see {where} --help)", 2)
        except click.ClickException as error:
            _fail(error.format_message(), error.exit_code)
        except ModuleNotFoundError as error:
            if error.name not in _TORCH:
                raise
            _fail(f"this command needs {error.name}, which is not installed: pip install 'contraflow[torch]'", 2)
        except BrokenPipeError:
            sys.stderr.close()  # the reader of our stdout has gone: say nothing more
            sys.exit(0)
        except MemoryError:
            _fail("out of memory", 1)
        except OSError as error:
            _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error), 2)
        except Exception as error:
            if not _ours(error):
                raise
            _fail(str(error), int(getattr(error, "exit_code", 2)))
        sys.exit(code if isinstance(code, int) else 0)


def _ours(error: Exception) -> bool:
    """Whether the message was written for the user: an exception class of this package."""
    return isinstance(error, InputError) or type(error).__module__.startswith(f"{__package__}.")


def _fail(message: str, code: int) -> None:
    click.echo(one_line(f"contraflow: {message}"), err=True)
    sys.exit(code)


def profile_by_name(name: str) -> ModelGraph:
    """Measures a registry model or "package.module:function" here, as `contraflow profile` does by default."""
    from .executor.cli import Asked, measure
    from .planner.problem import ModelGraph

    return ModelGraph.from_dict(measure(name, Asked()))


@click.group(cls=CommandLine, epilog=_EPILOG)
@click.version_option(__version__, prog_name="contraflow")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Search for pipeline-parallel training plans, prove how good they are, run them with torch."""
    ctx.obj = profile_by_name


def main() -> None:
    """Entry point of the console script."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # whatever a locale cannot write
    cli.main(prog_name="contraflow")


if __name__ == "__main__":
    main()
