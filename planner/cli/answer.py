"""What `contraflow plan` says of its answer, for people or as JSON; the plan goes to its file."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..plan import Forecast, Plan
from ..plan_file import save_plan
from .asynchronous import method_rows, print_methods, sentence, summary
from .common import among_to_dict, print_json, say, stop
from .explain import Why, idle_rows, usable, waiting
from .families import point_rows, print_points, throughput

if TYPE_CHECKING:
    from ..search import Result

_NAMED = 8  # devices that lack memory


def report(result: Result, output: Path, as_json: bool, why: Why | None, seconds: float) -> None:
    """Prints the answer and writes the plan; exit code 1 when there is none."""
    from ..search import overhead_notes

    told = idle_rows(result) if why is None else why.to_dict()
    made = result.plan
    if made is not None and made.forecast is not None and usable(result):
        save_plan(made, output)
        notes = overhead_notes(made)
        for note in notes:
            say(f"contraflow: {note}", err=True)
        if as_json:
            told |= {"notes": notes} if notes else {}
            content = _summary(result, made.forecast, seconds, output) | summary(made, made.forecast)
            content |= throughput(made, made.forecast) | point_rows(result)
            print_json(content | method_rows(result) | told)
        else:
            _print_plan(made, made.forecast, output)
            print_points(result)
            if why is None:
                say(waiting(made))
            else:
                print_methods(result)
                why.say()
        return
    if as_json:
        lacking = [asdict(shortage) for shortage in result.violations]
        print_json(_summary(result, None, seconds, None) | {"violations": lacking} | told)
    elif why is not None:
        why.say()
    say(f"contraflow: {result.status}: {_why(result)}", err=True)
    stop(1)


def _summary(result: Result, forecast: Forecast | None, seconds: float, output: Path | None) -> dict[str, Any]:
    return {
        "status": result.status,
        "step_s": None if forecast is None else forecast.step_s,
        "bound_s": result.bound_s,
        "gap": result.gap,
        "peak_bytes": None if forecast is None else list(forecast.peak_bytes),
        "seconds": seconds,
        "plan": None if output is None else str(output),
        "space": None if result.plan is None else result.plan.provenance.space,
        "among": among_to_dict(result.among, result.seconds),
    }


def _print_plan(made: Plan, forecast: Forecast, output: Path) -> None:
    from ..view import device_table, heading

    say(heading(made, forecast))
    if sentence(made, forecast):
        say(sentence(made, forecast))
    say(device_table(made, forecast))
    say(f"wrote {output}", err=True)


def _why(result: Result) -> str:
    """Why there is no plan: the bytes missing on each device where memory is the reason."""
    unknown = "no plan found, and none ruled out"
    reasons = [unknown if result.status == "unknown" else "no plan fits the memory"]
    reasons += [lack.missing for lack in result.violations[:_NAMED]]
    if len(result.violations) > _NAMED:
        reasons.append(f"and {len(result.violations) - _NAMED} more")
    return "; ".join(reasons)
