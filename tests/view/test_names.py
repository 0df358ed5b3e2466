"""Names of any content in every picture, message and table: read back by the parsers that readers have."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result
from instances import uniform
from mutations import HOSTILE
from pictures import two_device_plan

from contraflow.__main__ import cli
from contraflow.planner.basics.escapes import LINE, one_line, printable, shown
from contraflow.planner.plan import Plan
from contraflow.planner.plan_file import load_plan, save_plan
from contraflow.planner.problem.cluster import Cluster, NodeGroup
from contraflow.planner.problem.presets import DeviceType
from contraflow.planner.simulate import evaluate
from contraflow.planner.view import html
from contraflow.planner.view.compare_page import Entry, render

FORBIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""What a terminal acts upon, or no XML file may have."""
EVERYTHING = "".join(HOSTILE[:-1])
NAMES = {"all": EVERYTHING, "blank": " ", "long": HOSTILE[-1]}
each_name = pytest.mark.parametrize("name", NAMES.values(), ids=NAMES.keys())
VIEWS = [
    ("text", None), ("svg", "timeline"), ("html", "timeline"), ("perfetto", "timeline"),
    *((form, what) for form in ("svg", "dot") for what in ("layers", "placement", "ops")),
]  # fmt: skip


@cache
def drawn(name: str, folder: Path) -> dict[tuple[str, str | None], str]:
    """Every picture of the plan with this name."""
    save_plan(named(name), folder / "plan.json")
    found = {}
    for form, what in VIEWS:
        result = run("show", folder / "plan.json", "--as", form, *(() if what is None else ("--what", what)))
        assert result.exit_code == 0, result.stderr
        found[form, what] = result.stdout
    return found


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str | None], str]:
    """Every picture of a plan with a harmless name."""
    return drawn("plain", tmp_path_factory.mktemp("sound"))


@cache
def named(name: str) -> Plan:
    """A plan in which everything has this name that can have one."""
    plan = two_device_plan()
    model = plan.problem.model
    layers = tuple(replace(layer, name=f"{k}{name}") for k, layer in enumerate(model.layers))
    edges = tuple((a.name, b.name) for a, b in zip(layers, layers[1:], strict=False))
    model = replace(model, name=name, device=name, layers=layers, edges=edges)
    cluster = Cluster((NodeGroup(1, 2, DeviceType(name, 1 << 40)),))
    problem = replace(plan.problem, model=model, cluster=cluster)
    made = replace(
        plan, problem=problem, stages=tuple((layer.name,) for layer in layers),
        provenance=replace(plan.provenance, source=name, version=name, space=name),
    )  # fmt: skip
    return made.with_forecast(evaluate(made))


def run(*arguments: object) -> Result:
    """A command; what it prints has nothing that a terminal acts upon."""
    result = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert not FORBIDDEN.search(result.stdout + result.stderr)
    return result


# ---------------------------------------------------------------- strict readers


class Page(HTMLParser):
    """Counts scripts, and what could run or fetch something; no attribute is one of an event."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.scripts = self.links = 0
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        self.links += tag in ("img", "iframe", "link", "object", "base")
        assert not [key for key, _ in attrs if key.startswith("on")]


_DOT_TOKEN = re.compile(r'\s+|->|[{}\[\];,=]|[A-Za-z_][A-Za-z_0-9]*|-?[0-9.]+|"(?:[^"\\\n]|\\[\\"n])*"')


def dot_tokens(text: str) -> list[str]:
    """The tokens of a DOT file; in its strings no other escapes than an escaped quote or backslash and a line's end."""
    place, found = 0, []
    while place < len(text):
        match = _DOT_TOKEN.match(text, place)
        assert match is not None, text[place : place + 40]
        place = match.end()
        found.append(match[0])
    return [token for token in found if token.strip()]


def read_back(form: str, text: str, sound: str) -> None:
    """Parses a picture and compares its shape with that of a plan with harmless names."""
    if form == "svg":
        parsed, usual = ElementTree.fromstring(text), ElementTree.fromstring(sound)
        assert {element.tag for element in parsed.iter()} <= {element.tag for element in usual.iter()}
    elif form == "html":
        assert (Page(text).scripts, Page(text).links) == (Page(sound).scripts, Page(sound).links)
    elif form == "perfetto":
        assert len(json.loads(text)["traceEvents"]) == len(json.loads(sound)["traceEvents"])
    elif form == "dot":
        assert dot_tokens(text).count("->") == dot_tokens(sound).count("->")
        assert [t for t in dot_tokens(text) if t[0] != '"'] == [t for t in dot_tokens(sound) if t[0] != '"']
    else:
        assert max(map(len, text.split("\n"))) <= 80


@each_name
def test_hostile_names_are_text_in_every_picture(
    tmp_path: Path, name: str, sound: dict[tuple[str, str | None], str]
) -> None:
    """The file keeps the name as it is; pictures have as many parts as with any other name."""
    pictures = drawn(name, tmp_path)
    assert load_plan(tmp_path / "plan.json") == named(name)
    assert run("check", tmp_path / "plan.json").exit_code == 0
    for (form, what), text in pictures.items():
        read_back(form, text, sound[form, what])


@each_name
def test_hostile_names_are_text_in_the_table_and_page_of_compare(name: str) -> None:
    plan = named(name)
    entries = [Entry(name, name, 1.0, 0.1, 3, True, 0.0, name, plan), Entry(name, name, note=name)]
    sound = [Entry("a", "a", 1.0, 0.1, 3, True, 0.0, "a", named("plain")), Entry("a", "a", note="a")]
    page = render(name, entries)
    assert not FORBIDDEN.search(page)
    read_back("html", page, render("a", sound))
    read_back("html", html(plan), html(named("plain")))


@each_name
def test_hostile_names_are_text_on_the_terminal(tmp_path: Path, name: str) -> None:
    """Planning, refusing and checking: one line, of bounded length."""
    model = replace(uniform(2, parameter_bytes=1), name=name)
    model.save(tmp_path / "model.json")
    cluster = f'[[nodes]]\ndevices = 2\ndevice = "toy"\n[devices.toy]\nmemory = "1GiB"\n{json.dumps(name)} = 1'
    if "\ud800" not in name:
        (tmp_path / "cluster.toml").write_text(cluster)
        given = ["--cluster", tmp_path / "cluster.toml", "--micro-batches", 2, "--schedule", "1f1b"]
        result = run("plan", tmp_path / "model.json", *given, "-o", tmp_path / "out")
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    (tmp_path / "cluster.toml").write_text('[[nodes]]\ndevices = 2\ndevice = "cpu"\n')
    given = ["--cluster", tmp_path / "cluster.toml", "--micro-batches", 2, "--schedule", "1f1b"]
    assert run("plan", tmp_path / "model.json", *given, "-o", tmp_path / "out").exit_code == 0
    content = json.loads((tmp_path / "out").read_text())
    content["orders"][0][0] = name
    (tmp_path / "wrong").write_text(json.dumps(content))
    result = run("check", tmp_path / "wrong")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert len(result.stderr) <= LINE + 1
    for command in ("check", "show"):
        result = run(command, name[:200].replace("\x00", "").replace("\ud800", "") or "x")
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1)


def test_values_are_quoted_short_however_large_they_are() -> None:
    """Deep, wide and long values, and numbers that have no repr."""
    deep: object = 1
    for _ in range(100_000):
        deep = [deep]
    for value in (
        deep,
        list(range(10**5)),
        {k: k for k in range(10**5)},
        "x" * 10**6,
        10**5000,
        -(10**5000),
        "\x1b" * 9,
    ):
        assert len(shown(value)) <= 80
        assert not FORBIDDEN.search(shown(value))
    assert shown("a name") == "'a name'"
    assert len(one_line("word " * 10**5)) == LINE
    assert printable("tab\tand\nline") == "tab and line"


@pytest.mark.parametrize("form", ["text", "svg", "html", "png", "pdf", "dot", "perfetto"])
@pytest.mark.parametrize("what", [None, "timeline", "layers", "placement", "ops"])
def test_every_form_of_every_picture_is_drawn_or_refused_with_what_is_possible(
    tmp_path: Path, form: str, what: str | None
) -> None:
    """Without --what, the first that the form can draw."""
    if form in ("png", "pdf"):
        pytest.importorskip("matplotlib")
    save_plan(two_device_plan(), tmp_path / "plan.json")
    more = () if what is None else ("--what", what)
    result = run("show", tmp_path / "plan.json", "--as", form, *more, "-o", tmp_path / "picture")
    graphs = "layers placement ops"
    possible = {"text": "timeline", "html": "timeline", "perfetto": "timeline", "dot": graphs}
    if what is None or what in possible.get(form, f"timeline {graphs}"):
        assert result.exit_code == 0, result.stderr
        assert (tmp_path / "picture").stat().st_size > 0
    else:
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
        assert f"--as {form} draws" in result.stderr
