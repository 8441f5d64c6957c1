"""One strict build of the site into a folder, which is the old site or the new one and never half of one."""

from __future__ import annotations

import errno
import logging
import shutil
import sys
import tempfile
from pathlib import Path

from fenchel.errors import InputError, OutputError

__all__ = ["NEEDED_BYTES", "build_site"]

NEEDED_BYTES = 100 << 20
_INDEX = "search/search_index.json"


def build_site(root: Path, out: Path) -> None:
    """Build the site beside its place and move it there.

    Args:
        root: The root of the repository.
        out: Where it goes; an older site there is replaced.

    Raises:
        InputError: If something is there that is no site, or a page has a link, an anchor or a name that leads nowhere.
        OutputError: If there is no space, or the folder cannot be written to; an older site is then as it was.
    """
    from mkdocs.commands.build import build
    from mkdocs.config import load_config
    from mkdocs.exceptions import Abort

    out = out.absolute()
    _check_place(out)
    made, complaints = None, _Complaints()
    try:
        made = Path(tempfile.mkdtemp(prefix=".fenchel-site-", dir=out.parent))
        free = shutil.disk_usage(made).free
        if free < NEEDED_BYTES:
            raise OutputError(
                f"no space for the site: {out.parent} has {free >> 20} MB free and {NEEDED_BYTES >> 20} MB are needed. "
                "Free some space, or give another folder with --out."
            )
        logging.getLogger("mkdocs").addHandler(complaints)
        config = load_config(str(root / "mkdocs.yml"), site_dir=str(made / "site"), strict=True)
        config.plugins.on_startup(command="build", dirty=False)
        build(config)
        if out.exists():
            out.rename(made / "old")
        (made / "site").rename(out)
    except Abort as abort:
        raise InputError(f"the site was not built: {complaints}") from abort
    except OSError as error:
        if isinstance(error, OutputError):
            raise
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        reason = "the disk is full" if full else error.strerror or str(error)
        advice = "Free some space, or give" if full else "Give"
        raise OutputError(
            f"cannot write the site to {out}: {reason}. {advice} another folder with --out."
        ) from error
    finally:
        if made is not None:
            shutil.rmtree(made, ignore_errors=True)


def _check_place(out: Path) -> None:
    """What is there is replaced, so it has to be a site."""
    if out.is_dir() and any(out.iterdir()) and not (out / _INDEX).is_file():
        raise InputError(
            f"{out} has other things in it than a site, which would be lost. Give an empty or new folder with --out."
        )


class _Complaints(logging.Handler):
    """What mkdocs warns of: shown as it comes, and kept for the one line at the end."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())
        print(f"{record.levelname.lower()}: {record.getMessage()}", file=sys.stderr)  # noqa: T201

    def __str__(self) -> str:
        first = self.messages[0] if self.messages else "mkdocs gave no reason"
        more = f" (and {len(self.messages) - 1} more, above)" if len(self.messages) > 1 else ""
        return f"{first}{more}"
