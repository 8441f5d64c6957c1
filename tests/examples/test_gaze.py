"""examples/gaze.py and the maps of examples/saliency.py."""

import warnings
from typing import Any

import numpy as np
import pytest
import torch

import gaze
import saliency


def test_metrics_are_those_of_pysaliency_with_ties() -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "pkg_resources")
        import pysaliency
    draw = np.random.default_rng(0)
    maps = draw.integers(0, 4, (3, *saliency.GRID)).astype(float)
    x, y, n = draw.integers(0, 60, 50), draw.integers(0, 45, 50), draw.integers(0, 3, 50)
    stimuli = pysaliency.Stimuli([np.full((*saliency.GRID, 3), one, np.uint8) for one in range(3)])
    looked = pysaliency.Fixations.create_without_history(x, y, n)

    class Given(pysaliency.SaliencyMapModel):
        def _saliency_map(self, stimulus: Any) -> np.ndarray:
            return maps[int(stimulus[0, 0, 0])]

    expected = {"auc": Given().AUCs(stimuli, looked), "nss": Given().NSSs(stimuli, looked)}
    expected["shuffled_auc"] = Given().AUCs(stimuli, looked, nonfixations="shuffled")
    places = torch.from_numpy(y * 60 + x)
    total = places.bincount(minlength=gaze.PLACES)
    for number in range(3):
        mine = torch.from_numpy(n == number)
        one = gaze.Seen(maps[0], places[mine], mine, mine)
        found = gaze.scores(torch.from_numpy(maps[number]).reshape(1, -1), one, total - one.counts, None)
        for name, value in found.items():
            assert value == pytest.approx(expected[name][n == number].mean(), abs=1e-6)


def frozen(image: torch.Tensor) -> torch.Tensor:
    """Stands for a module."""
    return image[:2, ::4, ::4]


def test_toy_images_are_learned_and_exact_inference_is_an_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gaze, "KINDS", ("Q among O",))
    monkeypatch.setattr(gaze, "SIZES", (4, 8))
    told = gaze.Options(estimators=["exact"], epochs=2, displays=2, frozen=f"{__name__}:frozen")
    found = gaze.study(told)
    models = found["models"]
    assert models["readout, exact"]["bits"][0] > 0.2
    assert models["readout, exact"]["bits"][0] > models["readout of another image"]["bits"][0]
    assert models["other viewers"]["auc"][0] > models["centre bias"]["auc"][0]
    assert models["centre bias"]["bits"] == (0, 0)
    assert found["search"]["Q among O: guided"]["slope"][0] < found["search"]["Q among O: random"]["8"][0]
    for weights in found["cues"].values():
        assert weights["valid"][0] > weights["neutral"][0] > weights["invalid"][0]
    assert any(line.startswith("| history, exact |") for line in gaze.printed(found))
