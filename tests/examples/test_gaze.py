"""examples/gaze.py and the maps of examples/saliency.py."""

import io
import json
import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import gaze
import saliency
from fenchel.errors import InputError
from tests.examples.measured import refuses
from tests.pages import ROOT, page


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


def test_a_centre_bias_says_nothing_beyond_other_images() -> None:
    draw, bias = torch.Generator().manual_seed(0), torch.randn(gaze.PLACES).cumsum(0) / 20
    places = torch.multinomial(bias.softmax(-1), 16000, replacement=True, generator=draw).view(40, -1)
    images = [gaze.Seen(np.zeros(0), one, one, one) for one in places]
    centre, total = gaze.centre_bias(images), torch.stack([one.counts for one in images]).sum(0)
    rows = [gaze.scores(centre[None], one, total - one.counts, centre) for one in images]
    assert np.mean([row["shuffled_auc"] for row in rows]) == pytest.approx(0.5, abs=0.01)
    assert np.mean([row["auc"] for row in rows]) > 0.6
    assert [row["bits"] for row in rows] == [0] * 40


def change(size: int, to: int) -> np.ndarray:
    """The matrix of a linear change of size: triangles where it becomes smaller."""
    found = np.zeros((to, size))
    for row in range(to):
        for column in range(size):
            apart = abs((row + 0.5) * size / to - (column + 0.5)) / max(size / to, 1)
            found[row, column] = max(0.0, 1 - apart)
    return found / found.sum(1, keepdims=True)


def changed(one: np.ndarray, to: int) -> np.ndarray:
    matrix = change(len(one), to)
    return matrix @ one @ matrix.T


def filtered(one: np.ndarray, angle: float) -> np.ndarray:
    """The energy of a Gabor filter, by its definition."""
    parts = []
    for wave in (math.cos, math.sin):
        weights = np.zeros((9, 9))
        for y in range(-4, 5):
            for x in range(-4, 5):
                phase = 2 * math.pi / 5 * (x * math.cos(angle) + y * math.sin(angle))
                weights[y + 4, x + 4] = wave(phase) * math.exp(-(x * x + y * y) / (2 * 2.2**2))
        weights -= weights.mean()
        wide, total = np.pad(one, 4, mode="edge"), np.zeros_like(one)
        for y in range(9):
            for x in range(9):
                total += weights[8 - y, 8 - x] * wide[y : y + len(one), x : x + len(one)]
        parts.append(total)
    return np.sqrt(parts[0] ** 2 + parts[1] ** 2)


def normalised(one: np.ndarray) -> np.ndarray:
    """N(·), place by place."""
    one = one - one.min()
    if one.max() <= 1e-6:
        return 0 * one
    one, peaks = one / one.max(), []
    for y in range(len(one)):
        for x in range(len(one)):
            around = one[max(y - 1, 0) : y + 2, max(x - 1, 0) : x + 2]
            if one[y, x] > 0.1 and one[y, x] == around.max():
                peaks.append(one[y, x])
    peaks.remove(max(peaks))
    return one * (1 - (np.mean(peaks) if peaks else 0)) ** 2


def test_itti_and_koch_are_what_a_second_implementation_says() -> None:
    draw = np.random.default_rng(1)
    pixels = np.stack([changed(draw.random((16, 16)), 256) for _ in range(3)], -1)
    pixels[40:70, 100:130] = (0.9, 0.1, 0.1)
    light = pixels.mean(-1)
    r, g, b = (np.where(light > light.max() / 10, pixels[..., one] / light, 0) for one in range(3))
    red, green, blue = (np.maximum(one, 0) for one in (r - (g + b) / 2, g - (r + b) / 2, b - (r + g) / 2))
    yellow = np.maximum((r + g) / 2 - abs(r - g) / 2 - b, 0)
    maps = {"light": light, "red": red - green, "blue": blue - yellow}
    levels = {name: [one] for name, one in maps.items()}
    for one in levels.values():
        for _ in range(8):
            one.append(changed(one[-1], len(one[-1]) // 2))
    for number in range(4):
        levels[f"turned {number}"] = [filtered(one, number * math.pi / 4) for one in levels["light"]]
    totals = {name: np.zeros((16, 16)) for name in levels}
    for name, one in levels.items():
        for centre in (2, 3, 4):
            for step in (3, 4):
                apart = abs(one[centre] - changed(one[centre + step], len(one[centre])))
                totals[name] += changed(normalised(apart), 16)
    turned = np.sum([normalised(one) for name, one in totals.items() if name.startswith("turned")], 0)
    expected = [normalised(one) for one in (totals["light"], totals["red"] + totals["blue"], turned)]
    found, raw = saliency.conspicuity(pixels)
    assert np.stack(expected) == pytest.approx(found, abs=2e-4)
    assert np.stack([one[2] for one in levels.values()])[1:] == pytest.approx(raw, abs=1e-5)


def row(size: tuple[int, int] = (80, 70), x: float = 10.0, colour: int | None = None, frames: int = 1) -> Any:
    pixels = np.random.default_rng(0).integers(0, 256, (*size[::-1], 3), np.uint8)
    picture, stored = (
        Image.fromarray(pixels if colour is None else np.full_like(pixels, colour)),
        io.BytesIO(),
    )
    if frames == 1:
        picture.save(stored, "PNG")
    else:
        picture.save(stored, "GIF", save_all=True, append_images=[Image.fromarray(255 - pixels)])
    fixations = zip(gaze.COLUMNS[1:], ([0], [0], [x], [20.0]), strict=True)
    return {"row": {"image": {"bytes": stored.getvalue()}} | dict(fixations), "place": "row 3"}


def test_images_and_fixations_that_cannot_be_used_are_refused() -> None:
    assert gaze.seen(**row(x=159.9)).places.tolist() == [20 * 45 // 140 * 60 + 59]
    told = ((row(colour=7), "one colour"), (row(frames=2), "2 frames"), (row(size=(80, 20)), "80 x 20"))
    refuses(gaze.seen, [*told, (row(x=160.0), "fixation 0 is outside"), (row(x=-1.0), "row 3")])
    with pytest.raises(InputError, match=r"NUS-VIP.*--data toy"):
        gaze.read("/nowhere")


def test_fixations_before_are_of_the_same_viewing() -> None:
    told = row()["row"]
    told |= {"fixation_subject": [1, 0, 0], "fixation_order": [0, 1, 0]}
    told |= {"fixation_x": [0.0, 50.0, 100.0], "fixation_y": [0.0, 0.0, 0.0]}
    found = gaze.seen(told, "here")
    assert found.places.tolist() == [100 * 60 // 160, 50 * 60 // 160, 0]
    assert found.lags.tolist() == [[-1, -1, -1], [100 * 60 // 160, -1, -1], [-1, -1, -1]]
    model = gaze.Gaze(1, torch.zeros(gaze.PLACES), "first_order")
    one, other = model.history(torch.tensor([[[70, -1, -1], [70 + 60 + 1, -1, -1]]]))[0]
    assert torch.allclose(one.view(saliency.GRID)[:-1, :-1], other.view(saliency.GRID)[1:, 1:])


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


def test_the_page_shows_what_was_recorded() -> None:
    found = json.loads((ROOT / "docs" / "results" / "gaze.json").read_text())
    text = page("docs/gaze.md").split("## Other seeds")[0]
    lines = [*gaze.printed(found)]
    rows = {line for line in text.splitlines() if line.startswith("|")}
    models = {"|".join(line.split("|")[at] for at in (0, 1, 5, 6)) for line in lines[: lines.index("")]}
    assert models <= rows <= models | set(lines)  # of the models bits
    for name, called in (("Itti-Koch", "Itti-Koch"), ("centre bias", "the centre bias")):
        assert "{:.3f} ± {:.3f} for {}".format(*found["models"][name]["nss"], called) in " ".join(
            text.split()
        )
    slopes = [found["search"][f"{kind}: bottom-up"]["slope"] for kind in gaze.KINDS]
    for mean, half in (*slopes, found["search"]["conjunction: guided"]["slope"]):
        assert f"{mean:.3f} ± {half:.3f}".replace("-", "−") in text
    assert all(f"{mean:.3f}" in text for one in found["cues"].values() for mean, _ in one.values())
    assert f"explains {found['shares']['readout, first_order']:.0%} of".replace("%", " %") in text
