"""A headless Chromium for tests of pages. CONTRAFLOW_CHROMIUM names it if it is not on the path."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser

CHROMIUM = os.environ.get("CONTRAFLOW_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
MISSING = "no chromium on the path (Debian: apt-get install chromium)"


@contextmanager
def started() -> Iterator[Browser]:
    """No sandbox: containers of build machines have none, and the pages are ours."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        found = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()
