"""Captions of images by a trained captioner: from Python, by the command, shown, and what cannot be done."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fenchel.answering import TrainedRun, caption, terminal_map
from fenchel.data.captioned_images import as_input
from fenchel.errors import FenchelError
from fenchel.train.captions.task import NEVER_SAID
from tests.cli.conftest import Command
from tests.train.captions.small_captions import captioned, captions
from tests.train.text.small_texts import classified


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("captioner")
    captioned(folder, epochs=40, held_out=0.0, coverage=0.0, width=16, size=12, evaluate_every=20)
    return folder


@pytest.fixture
def image(tmp_path: Path) -> Path:
    from PIL import Image

    drawn = captions(12).images[5]
    path = tmp_path / "drawn.png"
    Image.fromarray(drawn.permute(1, 2, 0).contiguous().numpy()).save(path)
    return path


def test_what_is_said_and_looked_at(run, image):
    opened = TrainedRun.read(run, tasks=("captions",))
    (greedy,) = caption(opened, [image])
    pixels = as_input(captions(12).images[5:6], 8)
    model: Any = opened.model
    (found,) = model.captions(pixels, begin=2, end=3, longest=40, never=NEVER_SAID)
    assert greedy.text == opened.subwords.decoded(found.words)
    assert greedy.log_probability == pytest.approx(found.log_probability)
    assert greedy.pieces[-1] == "(end)"
    assert greedy.maps == ()
    (shown,) = caption(run, image, beam=3, show=True)
    assert shown.score >= greedy.score - 1e-6
    (drawn,) = shown.maps
    assert (drawn.queries, len(drawn.keys)) == (shown.pieces, 16)
    words = torch.tensor([[2, *found.words]])
    with torch.no_grad():
        weights = opened.model(images=pixels, words=words)["weights"][0]
    (first,) = caption(run, image, show=True)
    torch.testing.assert_close(first.maps[0].first_order, weights.double(), rtol=0, atol=1e-6)
    assert bool(drawn.solved.all())
    assert float(drawn.error.max()) < 1e-3
    lines = terminal_map(drawn, width=80).splitlines()
    assert max(map(len, lines)) <= 80
    assert sum("≤" in line for line in lines) >= 1
    assert any(line.startswith(shown.pieces[0]) for line in lines)


def test_a_folder_is_captioned_in_the_order_of_names(run, image):
    image.with_name("b.png").write_bytes(image.read_bytes())
    found = caption(run, [image.parent, image])
    assert [Path(one.image).name for one in found] == ["b.png", "drawn.png", "drawn.png"]
    assert found[0].text == found[1].text == found[2].text


def test_the_command(run, image, tmp_path, command: Command):
    plain = command("caption", run, image)
    assert plain.code == 0
    assert plain.out.startswith(f"{image}: ")
    assert "small: drawn" in plain.err
    written = json.loads(command("caption", run, image, "--json").out)
    assert [one["caption"] for one in written] == [caption(run, image)[0].text]
    assert set(written[0]) == {"image", "caption", "pieces", "log_probability", "score", "ended", "note"}
    assert command("caption", run, image, "--device", "cpu").out == plain.out
    assert "device is 'cpuu'" in command("caption", run, image, "--device", "cpuu").line
    shown = command(
        "caption", run, image, "--beam", 2, "--length-power", 0, "--show", "--out", tmp_path / "shown"
    )
    assert shown.code == 0
    assert "4 × 4 cells of drawn.png" in shown.out
    page = (tmp_path / "shown" / "attention.html").read_text()
    assert "data:image/png;base64," in page
    assert (tmp_path / "shown" / "attention-1.png").read_bytes().startswith(b"\x89PNG")
    both = command("caption", run, image, "--json", "--show", "--out", tmp_path / "shown")
    (one,) = json.loads(both.out)
    assert len(one["attention"][0]["exact"][0]) == 16


def test_what_cannot_be_captioned_is_named(run, image, tmp_path, command: Command):
    text = tmp_path / "letter.png"
    text.write_text("no image")
    assert "letter.png (not an image)" in command("caption", run, text).line
    cut = tmp_path / "cut.png"
    cut.write_bytes(image.read_bytes()[:60])
    assert "cut.png (" in command("caption", run, cut).line
    assert "there is no folder" in command("caption", run, tmp_path / "none.png").line
    assert "holds no trained model" in command("caption", tmp_path, image).line
    classified(tmp_path / "text", epochs=1)
    assert "expected one of captioner" in command("caption", tmp_path / "text", image).line
    assert "beam is 0" in command("caption", run, image, "--beam", 0).line
    assert "length power is -1" in command("caption", run, image, "--length-power", -1).line
    captioned(tmp_path / "mean", attention="mean", epochs=1)
    assert "which does not look" in command("caption", tmp_path / "mean", image, "--show").line
    with pytest.raises(FenchelError, match="there is no image"):
        caption(run, [])


def test_a_damaged_tokenizer_is_named(tmp_path, image, command: Command):
    captioned(tmp_path / "run", epochs=1)
    (tmp_path / "run" / "tokenizer.json").write_text("{}")
    assert "tokenizer.json is not what the training wrote" in command("caption", tmp_path / "run", image).line


def test_hard_attention_says_that_one_cell_is_read(tmp_path, image):
    captioned(tmp_path / "run", attention="hard", epochs=1)
    (found,) = caption(tmp_path / "run", image, show=True)
    assert found.maps[0].title.endswith("the heaviest cell alone is read")
