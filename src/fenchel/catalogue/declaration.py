"""Declaration of the entries of a family next to the functions that compute them, with small random inputs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import torch
from torch import Tensor, nn

from fenchel.catalogue.entry import Entry, Paper, Symmetry, Verdict
from fenchel.nn.preference import AbstractPreference, AttentionInputs

Module = TypeVar("Module", bound=nn.Module)
Written = TypeVar("Written", bound=Callable[..., Tensor])


def queries_or_keys(
    with_query: Mapping[str, int] | None = None, with_key: Mapping[str, int] | None = None
) -> tuple[Symmetry, Symmetry]:
    """The symmetries of attention that does not depend on positions.

    Args:
        with_query: Further inputs with the tokens of the query, and the dimension of the tokens of each.
        with_key: Likewise of key and value.
    """
    return (
        Symmetry({"query": -2, **(with_query or {})}),
        Symmetry({"key": -2, "value": -2, **(with_key or {})}, None),
    )


# Those without further inputs.
QUERIES_OR_KEYS: Final = queries_or_keys()

_PAPERS: Final[dict[str, dict[str, Any]]] = json.loads(Path(__file__).with_name("papers.json").read_bytes())


def cited(key: str, where: str = "") -> Paper:
    """A paper of ``papers.json``, which has each that an entry cites, by its first author and year.

    Args:
        key: Its key in the file.
        where: Section or equation in it.

    Raises:
        KeyError: If the file has no such key.

    Example:
        >>> str(cited("ramsauer2021", "eq. (3)"))
        'Ramsauer et al. 2021, Hopfield networks is all you need, eq. (3)'
    """
    return Paper(**_PAPERS[key], where=where)


# Fields of an entry without inference.
NO_INFERENCE: Final[dict[str, Any]] = {
    "templates": "–",
    "preference": "–",
    "evidence": "–",
    "closeness": "–",
    "verdict": Verdict.NOT_ONE,
    "exact_differs": False,
    "estimators": ("first_order",),
    "takes_closeness": False,
}


class Draw:
    """Draws the inputs of an example: independent normal numbers.

    Args:
        generator: Of the numbers.
        dtype: Of the tensors.
    """

    def __init__(self, generator: torch.Generator, dtype: torch.dtype) -> None:
        self.generator, self.dtype = generator, dtype

    def __call__(self, *shape: int) -> Tensor:
        """A tensor of normal numbers."""
        return torch.randn(*shape, generator=self.generator, dtype=torch.float64).to(self.dtype)

    def inputs(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """A tensor of normal numbers for each shape, a tensor for each float or list, and other inputs as given."""

        def one(value: Any) -> Any:
            if isinstance(value, tuple):
                return self(*value)
            return torch.tensor(value, dtype=self.dtype) if isinstance(value, float | list) else value

        return {name: one(value) for name, value in given.items()}

    def module(self, module: Module, size: float = 0.5) -> Module:
        """The module with normal parameters of standard deviation ``size``."""
        module.to(self.dtype)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.copy_(size * self(*parameter.shape))
        return module


def heads(
    *, queries: int = 6, keys: int | None = None, dim: int = 4, value_dim: int | None = None, count: int = 2
) -> dict[str, Any]:
    """Shapes of query (1, H, m, d), key (1, H, n, d) and value (1, H, n, d_v); by default n = m and d_v = d."""
    keys = queries if keys is None else keys
    return {
        "query": (1, count, queries, dim),
        "key": (1, count, keys, dim),
        "value": (1, count, keys, value_dim or dim),
    }


# Inputs of attention from 5 queries to 7 keys.
QUERIES_KEYS_VALUES: Final = heads(queries=5, keys=7, value_dim=3)

# Fields of an entry with these inputs whose positions do not matter.
UNORDERED: Final[dict[str, Any]] = {"example": QUERIES_KEYS_VALUES, "symmetries": QUERIES_OR_KEYS}


class Family:
    """The entries under one heading.

    Args:
        title: The heading.

    Attributes:
        entries: The entries, in the order of declaration.
    """

    def __init__(self, title: str) -> None:
        self.title, self.entries = title, list[Entry]()

    def entry(
        self, *, example: Callable[[Draw], dict[str, Any]] | Mapping[str, Any], **declared: Any
    ) -> Callable[[Written], Written]:
        """Declare the entry of the mechanism that the decorated function computes.

        Args:
            example: Inputs of a small case, as :meth:`Draw.inputs` takes them; or a function that draws them.
            **declared: Fields of the :class:`~fenchel.catalogue.Entry`. The name defaults to that of the function, and
                the meaning to its docstring.
        """

        def drawn(generator: torch.Generator, dtype: torch.dtype) -> dict[str, Any]:
            draw = Draw(generator, dtype)
            return draw.inputs(example) if isinstance(example, Mapping) else example(draw)

        def declare(written: Written) -> Written:
            name = written.__name__.strip("_").replace("_", "-")
            meaning = " ".join((written.__doc__ or "").split())
            fields = {"name": name, "family": self.title, "meaning": meaning, "written": written, **declared}
            self.entries.append(Entry(**fields, example=drawn))
            return written

        return declare


def log_weights_of(preference: AbstractPreference, query: Tensor, key: Tensor, **known: Any) -> Tensor | None:
    """The log-weights of a preference for queries (B, H, m, d) and keys (B, H, n, d).

    Args:
        preference: A preference that depends on positions and ``known``.
        query: Determines the sizes, dtype and device.
        key: Determines the number of keys.
        **known: Other fields of :class:`~fenchel.nn.preference.AttentionInputs`, such as ``query_offset``, the position
            of the first query among the keys, or ``query_inputs`` and ``key_inputs``.

    Returns:
        Log-weights or a mask that broadcasts to (B, H, m, n); None is uniform.
    """
    batch, heads, queries = query.shape[:3]
    return preference(
        AttentionInputs(batch, heads, queries, key.shape[2], query.device, query.dtype, **known)
    )
