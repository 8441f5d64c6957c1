"""Build the documentation site: ``python -m website --out site``."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from fenchel.cli.failure import explained
from fenchel.errors import require_packages

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    """Reads the options and builds.

    Returns:
        The exit code: that of :mod:`fenchel.errors`, 0 if the site is there.
    """
    parser = argparse.ArgumentParser(prog="python -m website", description="Build the documentation site.")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "site", help="Where the site goes. Default: %(default)s"
    )
    out = parser.parse_args().out

    def build() -> int:
        require_packages("docs", "mkdocs", "material", "mkdocstrings", "latex2mathml", "ziamath")
        # Said to whoever chooses a tool, not to whoever reads this project's pages.
        os.environ.setdefault("NO_MKDOCS_2_WARNING", "1")
        from website.build import build_site

        build_site(ROOT, out)
        print(f"The site is in {out}: open {out / 'index.html'}")  # noqa: T201
        return 0

    return explained(build)


if __name__ == "__main__":
    sys.exit(main())
