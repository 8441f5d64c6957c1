"""Pages that need nothing but themselves: templates that escape, a style, and one script that may run."""

from __future__ import annotations

import base64
import hashlib
from importlib import resources
from typing import TYPE_CHECKING

from fenchel import drawing as number
from fenchel.errors import MissingExtraError

if TYPE_CHECKING:
    from jinja2 import Environment

__all__ = ["page_environment", "page_file", "script_hash"]

_FOLDER = "page"


def page_environment(package: str) -> Environment:
    """Templates of a package's folder ``page``, in which every text is escaped and numbers are written as in reports.

    Args:
        package: Such as ``fenchel.auditing.report``.

    Raises:
        MissingExtraError: If jinja2 is not installed.
    """
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError as error:
        raise MissingExtraError("jinja2", "report") from error
    environment = Environment(
        loader=PackageLoader(package, _FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        decimal=number.decimal,
        short=number.short,
        percent=number.percent,
        count=number.count,
        plain=number.plain,
    )
    return environment


def page_file(package: str, name: str) -> str:
    """The text of a file in a package's folder ``page``."""
    return (resources.files(package) / _FOLDER / name).read_text(encoding="utf-8")


def script_hash(script: str) -> str:
    """What a page's policy names its script by: the browser runs this one and no other, whatever a token is called."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
