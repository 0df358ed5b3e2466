"""Files made wrong: JSON, TOML and text with structure kept or torn, and op lists that no plan can run."""

from __future__ import annotations

import copy
import json
import math
import random
import re
from typing import Any

HOSTILE = (
    "</script><script>alert(1)</script>",
    "\"'><img src=x onerror=alert(1)>",
    "two\nlines\r\nand\ttabs",
    "\x1b[31mred\x1b[0m\x1b]0;title\x07",
    "right \u202e to \u2066 left",
    "nul \x00 and \x7f\x85\x9b31m",
    "lone \ud800",
    "\\N \\G \\l {a|<b> c} &lt; &amp; %s {0} $data",
    "[bold]markup[/bold] [/x]",
    "😀é漢\u0301",
    "]]> --> <!-- ]",
    " ",
    "ab" * 5000,
)
"""Names that a terminal, a page or a graph could take for something else."""
WORDS = (
    "",
    "a",
    "nan",
    "1e999",
    "-1",
    "16GiB",
    "5us",
    "keep",
    "offload",
    "offload+weights",
    "recompute",
    "ship>0",
    "ship>9",
    "ship>999999999999",
    "flush",
    "stash",
    "2bw",
    "vertical",
    "adam",
    "mixed",
    "0F0",
    "0B0",
    "9F9",
    "٣F٣",
    "0SEND_F0>1",
    "0STEP",
    "-1F0",
    "0F" + "9" * 5000,
    "0F99999999",
    "1TIE=0",
    "0PREDICT0+1",
    "A100-80GB",
    "__class__",
    "name",
    "os:system",
)
NUMBERS = (
    0,
    1,
    -1,
    2,
    7,
    10**5,
    10**8,
    10**12,
    2**31,
    2**53,
    2**62,
    2**63 - 1,
    2**63,
    2**64,
    10**30,
    10**400,
    0.5,
    -0.5,
    1e-300,
    1e300,
    1.7e308,
    5e-324,
    math.nan,
    math.inf,
    -math.inf,
    True,
    False,
)
OTHERS: tuple[Any, ...] = (None, [], {}, [[]], [None], {"a": 1}, [1, 2], ["x", "y"])


def weird(rng: random.Random) -> Any:
    """A value that hardly belongs anywhere."""
    return copy.deepcopy(rng.choice(rng.choice([HOSTILE, WORDS, NUMBERS, NUMBERS, OTHERS])))


# ------------------------------------------------------------------ JSON


def places(value: Any, most: int = 4000) -> list[tuple[Any, ...]]:
    """Paths to everything inside a value."""
    found: list[tuple[Any, ...]] = []
    todo: list[tuple[tuple[Any, ...], Any]] = [((), value)]
    while todo and len(found) < most:
        here, item = todo.pop()
        found.append(here)
        inside = item.items() if isinstance(item, dict) else enumerate(item) if isinstance(item, list) else ()
        todo += [((*here, key), child) for key, child in inside]
    return found


def at(value: Any, path: tuple[Any, ...]) -> Any:
    """What is there."""
    for key in path:
        value = value[key]
    return value


def mutated(document: Any, rng: random.Random) -> Any:
    """The document with one to three entries changed, moved, added or lost."""
    document = copy.deepcopy(document)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        paths = places(document)
        shallow = [path for path in paths if len(path) <= 3]
        path = rng.choice(paths if rng.random() < 0.6 else shallow)
        if path:
            _change(document, path, paths, rng)
        elif rng.random() < 0.1:
            return weird(rng)
    return document


def _change(document: Any, path: tuple[Any, ...], paths: list[tuple[Any, ...]], rng: random.Random) -> None:
    parent, key, value = at(document, path[:-1]), path[-1], at(document, path)
    how = rng.choice(
        ["weird", "weird", "delete", "double", "swap", "key", "add", "near", "near", "near", "nest", "copy"]
    )
    if how == "weird":
        parent[key] = weird(rng)
    elif how == "delete":
        del parent[key]
    elif how == "double" and isinstance(parent, list):
        parent.insert(rng.randrange(len(parent) + 1), copy.deepcopy(value))
    elif how == "swap" and isinstance(parent, list):
        other = rng.randrange(len(parent))
        parent[key], parent[other] = parent[other], parent[key]
    elif how == "key" and isinstance(parent, dict):
        parent[rng.choice([*WORDS[:3], *HOSTILE[:3], f"{key}x", key.upper(), *parent])] = parent.pop(key)
    elif how == "add" and isinstance(value, dict):
        value[rng.choice(["extra", "", "__class__", "name", "version"])] = weird(rng)
    elif how == "add" and isinstance(value, list):
        value.append(weird(rng))
    elif how == "near":
        parent[key] = near(value, rng)
    elif how == "nest":
        for _ in range(rng.choice([1, 2, 50])):
            value = [value]
        parent[key] = value
    elif how == "copy":
        parent[key] = copy.deepcopy(at(document, rng.choice(paths)))


def near(value: Any, rng: random.Random) -> Any:
    """A value of the same kind that is a little, or much, off."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return rng.choice(
            [
                value + 1,
                value - 1,
                -value,
                value * 2,
                value * 1000,
                value / 2,
                value * 10**15,
                value * 10**19,
                float(value),
                str(value),
            ]
        )
    if isinstance(value, str):
        digits = re.sub(r"\d", lambda _: str(rng.randrange(10)), value)
        return rng.choice(
            [
                value[::-1],
                value + value,
                value[:-1],
                value.upper(),
                digits,
                digits,
                f"{value} ",
                rng.choice(WORDS),
                rng.choice(HOSTILE),
            ]
        )
    if isinstance(value, list):
        return rng.choice([value[::-1], value[:1], value + value, value[:-1], []])
    return weird(rng)


def json_bytes(document: Any, rng: random.Random) -> bytes:
    """The document mutated and written; now and then with a key twice, or the bytes torn."""
    text = json.dumps(mutated(document, rng))
    if rng.random() < 0.03:
        text = re.sub(r'"version": 1', '"version": 1, "version": 1', text, count=1)
    return torn(text.encode(), rng) if rng.random() < 0.1 else text.encode()


# ------------------------------------------------------------------ bytes

_INSERTED = (
    b"[" * 100_000,
    b'{"a":' * 50_000,
    b"\xff\xfe",
    b"/*",
    b"NaN",
    b'"',
    b"9" * 10_000,
    b"1e9999",
    b"\x00",
    b"\xed\xa0\x80",
    b"a.b." * 5000,
)
_WRITTEN = (
    b"-1",
    b"0",
    b"1e999",
    b"nan",
    b"inf",
    b"-inf",
    b"1" + b"0" * 400,
    b"9223372036854775808",
    b"100000000",
    b"1e308",
    b"0.1",
    b'"x"',
    b"true",
    b"1e-320",
    b"1_0",
)


def torn(text: bytes, rng: random.Random) -> bytes:
    """Bytes cut, flipped, doubled, inserted, or with a number replaced."""
    how = rng.choice(["cut", "flip", "double", "drop", "insert", "mark", "number", "number", "raw"])
    lines = text.split(b"\n")
    line = rng.randrange(len(lines))
    if how == "cut":
        return text[: rng.randrange(len(text) + 1)]
    if how == "flip":
        changed = bytearray(text)
        for _ in range(rng.choice([1, 3, 10])):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        return bytes(changed)
    if how == "double":
        return b"\n".join([*lines[:line], lines[line], *lines[line:]])
    if how == "drop":
        return b"\n".join(lines[:line] + lines[line + 1 :])
    if how == "insert":
        place = rng.randrange(len(text) + 1)
        return text[:place] + rng.choice(_INSERTED) + text[place:]
    if how == "mark":
        return b"\xef\xbb\xbf" + text
    if how == "raw":
        return rng.randbytes(rng.randrange(200))
    numbers = list(re.finditer(rb"(?<![\w.])-?\d+(\.\d+)?(e-?\d+)?", text))
    if not numbers:
        return text
    found = rng.choice(numbers)
    return text[: found.start()] + rng.choice(_WRITTEN) + text[found.end() :]


# ------------------------------------------------------------------ TOML


def toml_bytes(text: str, rng: random.Random) -> bytes:
    """A TOML file with values, keys and lines changed."""
    if rng.random() < 0.3:
        return torn(text.encode(), rng)
    lines = text.split("\n")
    for _ in range(rng.choice([1, 1, 2])):
        entries = [k for k, line in enumerate(lines) if "=" in line]
        if entries:
            _change_line(lines, rng.choice(entries), rng)
    return "\n".join(lines).encode(errors="surrogatepass")


_KEYS = (
    "flops",
    "memory",
    "speed",
    "extra",
    "shared_by",
    "count",
    "devices",
    "memory_bandwidth",
    "latency",
    "bandwidth",
    "a.b.c",
)


def _change_line(lines: list[str], k: int, rng: random.Random) -> None:
    key, _, value = lines[k].partition("=")
    how = rng.choice(["value", "value", "inner", "inner", "delete", "double", "key", "add", "add"])
    inner = list(re.finditer(r'"[^"]*"|(?<![\w"])\d[\w.]*', value))
    if how == "value":
        lines[k] = f"{key}= {toml_value(rng)}"
    elif how == "inner" and inner:
        found = rng.choice(inner)
        lines[k] = f"{key}={value[: found.start()]}{toml_value(rng)}{value[found.end() :]}"
    elif how == "delete":
        lines.pop(k)
    elif how == "double":
        lines.insert(k, lines[k])
    elif how == "key":
        lines[k] = f"{key.strip()}x ={value}"
    else:
        lines.insert(k + rng.randrange(2), f"{rng.choice(_KEYS)} = {toml_value(rng)}")


def toml_value(rng: random.Random) -> str:
    """A weird value, as TOML writes it."""
    value = rng.choice(
        [weird(rng), weird(rng), rng.choice(["0GB/s", "1e400GB/s", "-1s", "9" * 400 + "B", "16GiB", "5us", "1e-9B"])]
    )
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, (int, float)):
        return str(value) if not isinstance(value, int) or value.bit_length() < 1300 else "1" + "0" * 400
    return json.dumps(value).replace(":", "=").replace("null", '""')


# ------------------------------------------------------------------ op lists


def mutated_lists(orders: list[list[str]], rng: random.Random) -> list[list[str]]:
    """Op lists with ops repeated, missing, swapped, moved, retargeted, or of what is not there."""
    orders = [list(order) for order in orders]
    for _ in range(rng.choice([1, 1, 1, 2, 3, 6])):
        order = rng.choice(orders)
        if order:
            _change_list(orders, order, rng)
    return orders


def _change_list(orders: list[list[str]], order: list[str], rng: random.Random) -> None:
    k, j = rng.randrange(len(order)), rng.randrange(len(order))
    how = rng.choice(["repeat", "miss", "swap", "swap", "move", "number", "number", "kind", "hand", "reverse", "clear"])
    if how == "repeat":
        order.insert(j, order[k])
    elif how == "miss":
        order.pop(k)
    elif how == "swap":
        order[k], order[j] = order[j], order[k]
    elif how == "move":
        order.insert(j, order.pop(k))
    elif how == "number":
        order[k] = re.sub(
            r"\d+", lambda found: rng.choice([found[0], str(rng.randrange(12)), "99", "99999999"]), order[k]
        )
    elif how == "kind":
        kinds = (
            "F",
            "B",
            "I",
            "W",
            "R",
            "SEND_F",
            "RECV_F",
            "SEND_B",
            "RECV_B",
            "REDUCE",
            "STEP",
            "OFFLOAD",
            "FETCH",
            "FREE",
            "SEND_S",
            "RECV_S",
            "SEND_P",
            "RECV_P",
            "TIE",
            "PREDICT",
            "X",
        )
        order[k] = re.sub(r"[A-Z_]+", rng.choice(kinds), order[k], count=1)
    elif how == "hand":
        rng.choice(orders).append(order.pop(k))
    elif how == "reverse":
        a, b = min(k, j), max(k, j) + 1
        order[a:b] = order[a:b][::-1]
    elif rng.random() < 0.2:
        order.clear()
