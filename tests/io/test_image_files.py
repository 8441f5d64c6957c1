"""Images of a folder: which are taken, in which order, and what is said of those that cannot be read."""

import base64
import io
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from fenchel.errors import InputError
from fenchel.io.batches import ImageBatches, PatchGrid, PatchImages, open_images
from fenchel.io.runs import Shard
from tests.io.test_documents import table
from tests.vision_models import image_folder


class Whole:
    """A processor that keeps sizes, and the config of its model."""

    do_normalize, image_mean, image_std = True, [0.5, 0.5, 0.5], [0.25, 0.25, 0.25]
    num_channels, patch_size = 3, 4

    def __call__(self, images: list[Image.Image], return_tensors: str) -> dict[str, torch.Tensor]:
        assert return_tensors == "pt"
        rows = [
            torch.frombuffer(bytearray(one.resize((8, 8)).tobytes()), dtype=torch.uint8) for one in images
        ]
        pixels = torch.stack(rows).reshape(len(images), 8, 8, -1).permute(0, 3, 1, 2) / 255
        return {"pixel_values": (pixels - 0.5) / 0.25}


def test_files_are_taken_by_their_ending_in_the_order_of_their_names(tmp_path: Path) -> None:
    images = open_images(image_folder(tmp_path, 5))
    assert [path.name for path in images.paths] == ["0.png", "1.png", "2.png", "3.jpg", "4.gif"]
    assert [images.read(number).mode for number in range(5)] == ["RGB"] * 5
    assert images.read(2).size == (13, 8)
    assert open_images(tmp_path / "3.jpg").paths == (tmp_path / "3.jpg",)
    assert open_images(image_folder(tmp_path / "same", 5)).sha256 == images.sha256
    (tmp_path / "same" / "0.png").rename(tmp_path / "same" / "00.png")
    assert open_images(tmp_path / "same").sha256 != images.sha256


def test_folders_in_a_folder_are_classes_where_it_has_no_image_itself(tmp_path: Path) -> None:
    image_folder(tmp_path / "b", 2)
    image_folder(tmp_path / "a", 1)
    images = open_images(tmp_path)
    assert [str(path.relative_to(tmp_path)) for path in images.paths] == ["a/0.png", "b/0.png", "b/1.png"]
    assert images.labels == ("a", "b", "b")
    (tmp_path / "b").rename(tmp_path / "c")
    assert open_images(tmp_path).sha256 != images.sha256
    (tmp_path / "a" / "2.png").write_bytes(b"no image")
    with pytest.raises(InputError, match=r"cannot be read: a/2\.png \(not an image\)"):
        open_images(tmp_path)
    image_folder(tmp_path, 1)
    assert open_images(tmp_path).labels is None


def test_the_rows_of_a_table(tmp_path: Path) -> None:
    folder, file = image_folder(tmp_path / "images", 2), tmp_path / "images.PARQUET"
    rows = [{"bytes": (folder / name).read_bytes(), "path": name} for name in ("0.png", "1.png")]
    file.write_bytes(table("parquet", {"n": [5, 6], "img": rows}))
    images = open_images(file, label_column="n")
    assert images.labels == ("5", "6")
    one, other = images.read(1), open_images(folder).read(1)
    assert (one.size, one.tobytes()) == (other.size, other.tobytes())
    assert images.paths[1].name == "row 2"
    file.write_bytes(table("parquet", {"n": [5, 6], "img": [{"bytes": b"no"}, None]}))
    with pytest.raises(InputError, match=r"2 of 2 images in .* row 1 \(not an image\), row 2 \(not an"):
        open_images(file)
    file.write_bytes(table("parquet", {"n": [5, 6]}))
    with pytest.raises(InputError, match="has no column of images, such as the datasets library writes; it"):
        open_images(file)


def test_images_that_cannot_be_read_are_all_named_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there is no folder .*none"):
        open_images(tmp_path / "none")
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(InputError, match="has no image; it has 1 other files"):
        open_images(tmp_path)
    folder = image_folder(tmp_path)
    (folder / "a.png").write_bytes(b"no image")
    (folder / "b.jpg").write_bytes(b"")
    whole = (folder / "0.png").read_bytes()
    (folder / "c.png").write_bytes(whole[: len(whole) // 2])
    big = io.BytesIO()
    Image.new("1", (5000, 2)).save(big, "PNG")
    (folder / "d.png").write_bytes(big.getvalue())
    with pytest.raises(InputError) as raised:
        open_images(folder)
    said = str(raised.value)
    assert said.startswith(f"4 of 7 images in {folder} cannot be read: a.png (not an image), b.jpg")
    assert said.endswith("and 1 more. Fix or remove them.")
    assert "c.png (" in said


@pytest.mark.parametrize("ending", ["png", "jpg", "gif", "bmp", "tif", "webp"])
def test_an_image_that_lacks_its_last_bytes_is_not_whole(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a.{ending}"
    Image.effect_noise((30, 30), 60).convert("RGB").save(path)
    open_images(path)
    path.write_bytes(path.read_bytes()[:-12])  # of a PNG all pixels are there still, and its end is not
    with pytest.raises(InputError, match=rf"1 of 1 images in .* cannot be read: a\.{ending} \("):
        open_images(path)


def test_batches_go_on_from_every_place_and_shards_share_the_images(tmp_path: Path) -> None:
    images = open_images(image_folder(tmp_path, 5))
    batches = list(ImageBatches(images, Whole(), config=Whole, batch_size=2).batches())
    assert [batch.documents for batch in batches] == [(1, 2), (3, 4), (5,)]
    assert [batch.fraction for batch in batches] == [0.4, 0.8, 1.0]
    assert (batches[-1].after.tokens, batches[-1].after.documents) == (5, 5)
    again = list(ImageBatches(images, Whole(), batch_size=2).batches(batches[0].after))
    assert [batch.documents for batch in again] == [(3, 4), (5,)]
    assert again[-1].after == batches[-1].after
    assert torch.equal(again[0].inputs["pixel_values"], batches[1].inputs["pixel_values"])
    part = list(ImageBatches(images, Whole(), batch_size=2, shard=Shard(1, 2)).batches())
    assert [batch.documents for batch in part] == [(2, 4)]


def test_a_processor_that_fails_is_named_with_the_images(tmp_path: Path) -> None:
    def broken(**_: object) -> None:
        raise ValueError("mean must\nhave 3 elements")

    images = open_images(image_folder(tmp_path, 1))
    flat: Any = lambda **_: {"pixel_values": torch.zeros(1, 12)}  # noqa: E731
    for processor, message in (
        (broken, r"processor function does not take 0\.png: mean must have 3"),
        (flat, r"returned pixel_values \(1, 12\) for 1 images"),
    ):
        with pytest.raises(InputError, match=message):
            list(ImageBatches(images, processor).batches())


def test_thumbnails_are_the_images_as_the_model_saw_them() -> None:
    generator = torch.Generator().manual_seed(0)
    smooth = torch.nn.functional.interpolate(
        torch.rand(1, 3, 3, 3, generator=generator), (210, 130), mode="bilinear"
    )
    pictures: Any = PatchImages.of((smooth - 0.5) / 0.25, Whole, Whole)
    kind, _, content = pictures.thumbnail(0).partition(",")
    assert kind == "data:image/jpeg;base64"
    drawn = Image.open(io.BytesIO(base64.b64decode(content)))
    assert drawn.size == (59, 96)
    found = torch.frombuffer(bytearray(drawn.tobytes()), dtype=torch.uint8).reshape(96, 59, 3) / 255
    (expected,) = torch.nn.functional.interpolate(smooth[..., :208, :128], (96, 59), mode="area")
    assert float((found - expected.permute(1, 2, 0)).abs().max()) < 0.04
    assert len(content) < 10_000


def test_patches_are_told_from_other_positions() -> None:
    pictures: Any = PatchImages.of(torch.zeros(1, 3, 8, 12), Whole)
    expected = [None, PatchGrid(2, 3, 0), PatchGrid(2, 3, 2), None]
    assert [pictures.grid(positions) for positions in (5, 6, 8, 100)] == expected
    assert PatchImages.of(torch.zeros(1, 3, 8, 8), object()) is None
    assert PatchImages.of(None, Whole) is None
