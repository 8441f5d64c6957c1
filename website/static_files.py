"""Files that every page of the site needs: the style sheet, the font of formulas, search without a server."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

__all__ = ["static_files"]

_FONT = "STIXTwoMath-Regular.ttf"


def static_files(folder: Path) -> dict[str, Path]:
    """Where each lies, by its path on the site.

    Args:
        folder: Those that are the project's own.

    Returns:
        Also STIX Two Math (SIL Open Font License), which the package ``ziamath`` brings. Nothing of it is run.

    Raises:
        FileNotFoundError: If that package has no such font.
    """
    package = find_spec("ziamath")
    font = Path(str(package and package.origin)).parent / "fonts" / _FONT
    if not font.is_file():
        raise FileNotFoundError(
            f"the package ziamath has no {_FONT}: pip install -c constraints.txt '.[docs]'"
        )
    own = {f"assets/{path.name}": path for path in sorted(folder.iterdir())}
    return own | {f"assets/{font.name}": font}
