"""The site as the command builds it, once for all tests and all of their processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

from tests.pages import ROOT


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("material", reason="the site needs pip install 'fenchel[docs]'")
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    out, said = shared / "site", shared / "site.json"
    with FileLock(shared / "site.lock"):
        if not said.exists():
            command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(out)]
            # Material warns whoever chooses a tool of its successor.
            settings = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
            built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=settings)
            said.write_text(json.dumps([built.returncode, built.stdout, built.stderr]))
    # Strict, and without a warning.
    assert json.loads(said.read_text()) == [0, "", ""]
    return out
