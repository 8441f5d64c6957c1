"""What docs/closeness.md shows is what happens."""

import pytest

from tests.pages import run_blocks


def test_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    names = run_blocks("docs/closeness.md")
    printed = capsys.readouterr().out
    assert "Tsallis(2, relative='csiszar')" in printed
    assert "ClosenessReport(Divergence(value) holds" in printed
    assert "weights are not the gradient of conjugate" in printed
    assert names["order"].grad.shape == (1,)
    assert bool((names["estimate"].weights >= 0).all())
