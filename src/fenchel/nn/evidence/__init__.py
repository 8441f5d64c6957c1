r"""The evidence z: what a query says of the templates, as modules that also say what the templates are.

Each maps (query, key) to (z, templates, scale), which go to :func:`fenchel.functional.attention` as its query, key and
scale; at first order the score of key j is then :math:`\alpha\,\text{scale}\,\langle t_j, z_i\rangle`. Heads are those
of the query; keys may have fewer, which divide them, as in grouped-query attention. Some look at places too; where
these make templates differ by query, :func:`fenchel.functional.relative_attention` infers.
"""

from __future__ import annotations

from fenchel.nn.evidence.abstract import AbstractEvidence as AbstractEvidence
from fenchel.nn.evidence.content import Content as Content
from fenchel.nn.evidence.general import General as General
from fenchel.nn.evidence.grid_keys import RelativeGridKeys as RelativeGridKeys
from fenchel.nn.evidence.network import NetworkEvidence as NetworkEvidence
from fenchel.nn.evidence.no_evidence import NoEvidence as NoEvidence
from fenchel.nn.evidence.positional import AbstractPositionalEvidence as AbstractPositionalEvidence
from fenchel.nn.evidence.relative_keys import RelativeKeys as RelativeKeys
from fenchel.nn.evidence.rotary import Rotary as Rotary
from fenchel.nn.evidence.scaled_dot import ScaledDot as ScaledDot
from fenchel.nn.evidence.templates import RelativeTemplates as RelativeTemplates
from fenchel.nn.evidence.transformer_xl import TransformerXL as TransformerXL

__all__ = [
    "AbstractEvidence",
    "AbstractPositionalEvidence",
    "Content",
    "General",
    "NetworkEvidence",
    "NoEvidence",
    "RelativeGridKeys",
    "RelativeKeys",
    "RelativeTemplates",
    "Rotary",
    "ScaledDot",
    "TransformerXL",
]
