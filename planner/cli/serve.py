"""`contraflow serve`: the search of `contraflow plan`, followed in a browser while it runs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from .answer import report
from .asynchronous import asynchronous_options, fitting
from .common import OutputFile, problem_options, say
from .families import family_options, load_asked
from .options import effort_options, search_space, workload_options
from .output import own_plan_file
from .signals import EndingSignals

_EXAMPLE = """\b
Example:
  contraflow serve model.json --cluster cluster.toml --micro-batches 8 \\
      --time-limit 600 -o plan.json
"""
_LOOK_S = 0.2


@click.command("serve", epilog=_EXAMPLE)
@problem_options
@click.option("--schedule", default="search", show_default=True, metavar="NAME", help="As of `plan`.")
@family_options
@asynchronous_options
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, show_default=True, help="Of the loopback; 0: any that is free."
)
@click.option("--open", "opens", is_flag=True, help="Open the page in the browser of this machine.")
@click.option("--once", is_flag=True, help="End with the search, instead of showing its plan until Ctrl-C.")
@click.option("-o", "--output", type=OutputFile(), help="Write the plan there; only on success. [default: plan.json]")
@click.pass_context
def serve(
    ctx: click.Context,
    /,
    model: str,
    cluster_file: str,
    output: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Search for the fastest plan for MODEL, as `plan` does, and show the search in a browser while it runs.

    Plans stream in, the bound rises, a button ends the search with the best so far, and an order changed by hand is
    judged by the checker. The page is for this machine alone (127.0.0.1), and for whoever has the address that is
    printed, which contains a token. When the search has ended, its plan is written and the page stays until Ctrl-C.
    Needs starlette and uvicorn: pip install 'contraflow[serve]'.
    """
    from ..serve import Live, Server, require_server

    require_server()
    space = search_space(options["schedule"], options)
    output = output or own_plan_file()
    asked = load_asked(model, cluster_file, ctx.obj, options, workload_options(options))
    space = fitting(asked.problems()[0], space, options)
    from ..search import Effort, plan_family

    live = Live(asked.family.name, options["time_limit"])
    started = time.monotonic()
    with Server(live, options["port"]) as server, EndingSignals() as ending:
        say(f"the search is at {server.url}", err=True)
        if options["opens"]:
            click.launch(server.url)
        result = plan_family(*asked, space, Effort(**effort_options(options)), live.tell)
        live.finish(result.plan, result.bound_s, result.status)
        ending.report()
        report(result, output, as_json, None, time.monotonic() - started)
        if not options["once"]:
            _until_signalled(ending)


def _until_signalled(ending: EndingSignals) -> None:
    """Until Ctrl-C, SIGTERM or SIGHUP; at once where one has ended the search."""
    try:
        if not ending.number:
            say("Ctrl-C ends the page", err=True)
        while not ending.number:
            time.sleep(_LOOK_S)
    except KeyboardInterrupt:
        say("ended", err=True)
