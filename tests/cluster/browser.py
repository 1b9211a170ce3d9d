"""A headless Chromium that is logged in to MLflow and records the errors of its pages."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, expect, sync_playwright

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
)  # fmt: skip
SIZE: Any = {"width": 1280, "height": 800}
SECONDS = 60_000.0
"""Milliseconds that a page may take on a busy machine."""

STILL = 1_500.0
"""Milliseconds until tables and plots have their final places."""

CHOSEN = {
    "mlflow.workflowType_v1": '"machine_learning"',
    "mlflow.assistant.fab.autoOpenedOnFirstLoad_v1": "true",
    "mlflow.assistant.panelOpen_v1": "false",
}
"""Settings of MLflow's pages that a user makes once: runs instead of traces, no assistant."""

HARMLESS = "ResizeObserver loop"
"""An error that MLflow's own table reports."""


class Browser:
    """A page, and ``complaints``: the errors on its console and the exceptions in its scripts."""

    def __init__(self, page: Page) -> None:
        self.page, self.complaints = page, list[str]()
        page.set_default_timeout(SECONDS)
        expect.set_options(timeout=SECONDS)
        page.on("console", lambda said: self._hear(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: self._hear(str(error)))

    def _hear(self, text: str) -> None:
        if HARMLESS not in text:
            self.complaints.append(text)

    def shoot(self, file: Path) -> None:
        """Take a screenshot after a pause in which the page settles."""
        self.page.wait_for_timeout(STILL)
        self.page.screenshot(path=file, animations="disabled")


@contextmanager
def browser(user: str = "", password: str = "") -> Iterator[Browser]:
    """A browser with its own profile, closed when the block ends."""
    assert CHROMIUM is not None, "Chromium is not installed (Debian: apt-get install chromium)"
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=[*FLAGS])
        context = chromium.new_context(
            viewport=SIZE, http_credentials={"username": user, "password": password} if user else None
        )
        for name, value in CHOSEN.items():
            context.add_init_script(
                f"if (window === top) localStorage.setItem({name!r}, {value!r})"
            )  # the frame of a report has no localStorage
        try:
            yield Browser(context.new_page())
        finally:
            chromium.close()
