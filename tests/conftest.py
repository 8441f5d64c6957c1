"""What all tests share: examples that Hypothesis draws are the same in every run, and a headless Chromium."""

import gc
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from fenchel.errors import FenchelError
from tests.pages import Watched

settings.register_profile("reproducible", derandomize=True, deadline=None)
settings.load_profile("reproducible")
# What a power cut leaves is tested by nothing here; to wait for the disk takes a twentieth of an audit's time.
os.fsync = lambda fd: None


def pytest_configure(config: pytest.Config) -> None:
    """Do without AMX where the processor names it and the system does not let processes use it."""
    runs_no_test = config.getoption("numprocesses", None) and "PYTEST_XDIST_WORKER" not in os.environ
    if runs_no_test or "ONEDNN_MAX_CPU_ISA" in os.environ or not hasattr(os, "fork"):
        return
    import torch  # here, so that the process which tries a product need not

    if (child := os.fork()) == 0:
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            torch.ones(64, 64, dtype=torch.bfloat16).mm(torch.ones(64, 64, dtype=torch.bfloat16))
        finally:
            os._exit(0)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) < 0:
        os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE_BF16"


def pytest_collection_finish() -> None:
    """Never look again for garbage among what imports made, which takes a tenth of the time, and seldom elsewhere."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000)


@pytest.fixture(autouse=True)
def errors_are_one_line(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Checks every error of the package that a test raises, also where it looks at something else of it."""
    said: list[str] = []

    def noted(self: FenchelError, *args: Any, **options: Any) -> None:
        super(FenchelError, self).__init__(*args, **options)
        said.append(str(self))

    monkeypatch.setattr(FenchelError, "__init__", noted)
    yield
    assert [message for message in said if "\n" in message] == []


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not installed; on Debian: apt-get install chromium")
    api = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed; run: pip install 'fenchel[dev]'"
    )
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def visit(browser: Any, tmp_path: Path) -> Iterator[Any]:
    """Opens a page in a window of some width, and checks in the end that it did nothing that it should not."""
    contexts, opened = [], []

    def visit(html: str, *, width: int = 1280, **options: Any) -> Watched:
        path = tmp_path / "report.html"
        path.write_text(html, encoding="utf-8")
        contexts.append(browser.new_context(viewport={"width": width, "height": 900}, **options))
        watched = Watched(contexts[-1].new_page())
        watched.page.set_default_timeout(10_000)
        watched.page.goto(path.as_uri())
        opened.append(watched)
        return watched

    yield visit
    for context in contexts:
        context.close()
    assert [trouble for watched in opened for trouble in watched.troubles] == []
