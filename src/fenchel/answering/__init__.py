"""Use of trained models: what they answer, and what they attended to, first order and exact side by side."""

from __future__ import annotations

from fenchel.answering.attention_map import AttentionMap, Grid, seen_attention
from fenchel.answering.captioning import Caption, caption
from fenchel.answering.filling import Blank, Filled, fill
from fenchel.answering.lines import Line, lines_of_file, lines_of_texts
from fenchel.answering.map_page import ShownAnswer, write_shown
from fenchel.answering.reading import Classified, Entailed, PairLine, classify, entail, pair_lines
from fenchel.answering.terminal_map import terminal_map
from fenchel.answering.trained_run import TrainedRun
from fenchel.answering.translating import Translated, translate

__all__ = [
    "AttentionMap",
    "Blank",
    "Caption",
    "Classified",
    "Entailed",
    "Filled",
    "Grid",
    "Line",
    "PairLine",
    "ShownAnswer",
    "TrainedRun",
    "Translated",
    "caption",
    "classify",
    "entail",
    "fill",
    "lines_of_file",
    "lines_of_texts",
    "pair_lines",
    "seen_attention",
    "terminal_map",
    "translate",
    "write_shown",
]
