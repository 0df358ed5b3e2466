"""What a browser may ask of a live search: its page, the news, the best plan, to end it, and to judge an edit."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import cache, wraps
from importlib import resources
from typing import Any

from anyio import to_thread
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from ..basics import PlanError, format_seconds
from ..plan import Plan, gap_of
from ..plan_file import plan_to_dict
from ..view import html
from .edits import Verdict, compute_orders, judged
from .live import Live

_BEAT_S = 1.0
"""Seconds between two looks at whether the browser still listens."""
_MOST_BODY = 64 * 1024**2
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; frame-src 'self'; base-uri 'none'"
)
_Answer = Callable[[Request], Awaitable[Response]]


def application(live: Live, token: str, port: int, closed: threading.Event) -> Starlette:
    """The application. Every request must have the token and be meant for this machine's loopback."""
    return Starlette(routes=_Answers(live, token, port, closed).routes())


class _Answers:
    """One handler a route."""

    def __init__(self, live: Live, token: str, port: int, closed: threading.Event) -> None:
        self.live, self.token, self.closed = live, token, closed
        self.hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost")}
        self.edited: Verdict | None = None

    def routes(self) -> list[Route]:
        """Files of the page need the token, too: whoever has not got it learns nothing."""
        reads = {
            "/": self.start, "/live.js": self.script, "/live.css": self.style, "/news": self.news,
            "/plan.html": self.page, "/plan.json": self.file, "/orders": self.orders,
        }  # fmt: skip
        writes = {"/end": self.end, "/judge": self.judge}
        return [
            *(Route(path, self._guarded(answer)) for path, answer in reads.items()),
            *(Route(path, self._guarded(answer), methods=["POST"]) for path, answer in writes.items()),
        ]

    def _guarded(self, answer: _Answer) -> _Answer:
        @wraps(answer)
        async def guarded(request: Request) -> Response:
            said = request.query_params.get("token", "")
            origin = request.headers.get("origin")
            known = request.headers.get("host") in self.hosts
            own = origin is None or origin in {f"http://{host}" for host in self.hosts}
            if not (known and own and secrets.compare_digest(said.encode(), self.token.encode())):
                return PlainTextResponse("the address lacks its token: take the one that was printed\n", 403)
            response = await answer(request)
            response.headers["Cache-Control"] = "no-store"
            response.headers["Referrer-Policy"] = "no-referrer"
            response.headers["X-Content-Type-Options"] = "nosniff"
            return response

        return guarded

    # ---------------------------------------------------------------- the page

    async def start(self, _: Request) -> Response:
        content = _source("live.html").replace("$token", self.token)
        return HTMLResponse(content, headers={"Content-Security-Policy": _POLICY})

    async def script(self, _: Request) -> Response:
        return Response(_source("live.js"), media_type="text/javascript")

    async def style(self, _: Request) -> Response:
        return Response(_source("live.css"), media_type="text/css")

    async def news(self, _: Request) -> Response:
        return StreamingResponse(self._told(), media_type="text/event-stream")

    async def _told(self) -> AsyncIterator[str]:
        number = -1
        while not self.closed.is_set():
            state = await to_thread.run_sync(self.live.wait, number, _BEAT_S)
            if state.number == number:
                yield ": still here\n\n"
                continue
            number = state.number
            yield f"data: {json.dumps(self.live.told(), allow_nan=False)}\n\n"

    # ---------------------------------------------------------------- plans

    def _chosen(self, request: Request) -> Plan | None:
        """The best plan, or with ?edited the one that was judged last."""
        if "edited" in request.query_params:
            return None if self.edited is None else self.edited.plan
        return self.live.plan

    async def page(self, request: Request) -> Response:
        plan = self._chosen(request)
        if plan is None:
            return PlainTextResponse("no plan yet\n", 404)
        edited = "edited" in request.query_params
        drawn = await to_thread.run_sync(html, plan) if edited else await to_thread.run_sync(self.live.page)
        return HTMLResponse(drawn or "")

    async def file(self, request: Request) -> Response:
        plan = self._chosen(request)
        if plan is None:
            return PlainTextResponse("no plan yet\n", 404)
        content = json.dumps(await to_thread.run_sync(plan_to_dict, plan))
        attached = {"Content-Disposition": 'attachment; filename="plan.json"'}
        return Response(content, media_type="application/json", headers=attached)

    async def orders(self, _: Request) -> Response:
        plan = self.live.plan
        orders = () if plan is None else compute_orders(plan)
        return JSONResponse({"version": self.live.state.version, "orders": [" ".join(map(str, o)) for o in orders]})

    # ---------------------------------------------------------------- what changes something

    async def end(self, _: Request) -> Response:
        await to_thread.run_sync(self.live.end)
        return JSONResponse({"asked_to_end": True})

    async def judge(self, request: Request) -> Response:
        plan = self.live.plan
        if plan is None:
            return JSONResponse({"error": "no plan yet"}, 409)
        if int(request.headers.get("content-length") or 0) > _MOST_BODY:
            return JSONResponse({"error": "more than 64 MiB of orders"}, 413)
        try:
            edits = _edits(await request.json())
            verdict = await to_thread.run_sync(judged, plan, edits)
        except (PlanError, ValueError) as error:
            return JSONResponse({"error": str(error)}, 400)
        self.edited = verdict
        return JSONResponse(_said(verdict, plan))


def _edits(content: Any) -> Mapping[int, str]:
    """Orders by device of {"orders": {"0": "0F0 0B0"}}. Raises PlanError for anything else."""
    orders = content.get("orders") if isinstance(content, dict) else None
    if not isinstance(orders, dict):
        raise PlanError('an edit is {"orders": {"0": "0F0 0B0"}}')
    if not all(key.isascii() and key.isdecimal() and isinstance(text, str) for key, text in orders.items()):
        raise PlanError("an edit names devices by numbers and their operations in one text each")
    return {int(key): text for key, text in orders.items()}


def _said(verdict: Verdict, best: Plan) -> dict[str, object]:
    """A verdict for the page: its violations, its step, and how much longer than the best that is."""
    made = verdict.plan
    said: dict[str, object] = {"violations": list(verdict.violations), "step_s": None, "text": ""}
    if made is None or made.forecast is None or best.forecast is None:
        return said
    step_s, best_s = made.forecast.objective_s, best.forecast.objective_s
    more = gap_of(step_s, best_s)
    than = (
        "as long as the best plan's" if abs(more) < 1e-9 else f"{abs(more):.2%} {'longer' if more > 0 else 'shorter'}"
    )
    return said | {"step_s": step_s, "text": f"step {format_seconds(step_s)}, {than}"}


@cache
def _source(name: str) -> str:
    """A file of `page/`."""
    return resources.files(__package__).joinpath("page", name).read_text(encoding="utf-8")
