"""Tables in a terminal that all look the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fenchel.errors import MissingExtraError

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["titled_table"]


def titled_table(title: str) -> Table:
    """An empty table of rich under a title, which is never read as markup.

    Raises:
        MissingExtraError: If rich is not installed.
    """
    try:
        from rich import box
        from rich.table import Table
        from rich.text import Text
    except ImportError as error:
        raise MissingExtraError("rich", "cli") from error
    return Table(box=box.SIMPLE_HEAD, title=Text(title), title_justify="left", pad_edge=False)
