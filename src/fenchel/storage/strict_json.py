"""JSON as the same bytes for the same content, and read so that nothing in it is guessed at or overlooked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn

from fenchel.errors import InputError
from fenchel.storage.files import write_text

__all__ = ["json_text", "parse_json", "write_json"]

_LONGEST_INTEGER = 300


def json_text(value: Any) -> str:
    """JSON that is the same bytes for the same content: sorted keys, neither NaN nor infinity."""
    return json.dumps(value, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def write_json(path: Path, value: Any) -> None:
    """Write JSON, atomically."""
    write_text(path, json_text(value))


def parse_json(content: bytes) -> Any:
    """The value of UTF-8 JSON that ``json_text`` could have written, in whatever layout.

    Args:
        content: The bytes.

    Returns:
        The value.

    Raises:
        InputError: If it is no JSON, or holds what two readers may take for different things: a key twice, NaN or an
            infinity, half of a surrogate pair, an integer of hundreds of digits, or nesting beyond measure. The message
            says what, without a file's name.

    Example:
        >>> parse_json(b'{"alpha": 1.5}')
        {'alpha': 1.5}
        >>> parse_json(b'{"alpha": 1, "alpha": 2}')
        Traceback (most recent call last):
        ...
        fenchel.errors.InputError: it has the key 'alpha' twice
    """
    try:
        value = json.loads(
            content.decode("utf-8"),
            object_pairs_hook=_without_repetition,
            parse_constant=_refuse_constant,
            parse_int=_integer,
        )
        json_text(value).encode("utf-8")  # 1e999 is an infinity, and half of a surrogate pair is no character
    except InputError:
        raise
    except UnicodeDecodeError as error:
        raise InputError(f"it is no UTF-8 text (byte {error.start})") from error
    except UnicodeEncodeError as error:
        raise InputError("it holds half of a surrogate pair, which is no character") from error
    except json.JSONDecodeError as error:
        raise InputError(f"it is no JSON ({error})") from error
    except RecursionError as error:
        raise InputError("it is nested too deeply") from error
    except ValueError as error:
        raise InputError("it holds a number beyond float64") from error
    return value


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise InputError(f"it has the key {key[:60]!r} twice")
        found[key] = value
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise InputError(f"it holds {name}, which is no JSON number")


def _integer(digits: str) -> int:
    if len(digits) > _LONGEST_INTEGER:
        raise InputError(f"it holds an integer of {len(digits)} digits")
    return int(digits)
