"""What can be loaded, and what is said where it cannot."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fenchel.data import load
from fenchel.errors import InputError
from tests.data.image_files import drawn_images, write_idx_folder

SPLIT = drawn_images(10, channels=1, side=28), torch.arange(10)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("FENCHEL_DATA", raising=False)
    write_idx_folder(tmp_path / "fashion_mnist", SPLIT, SPLIT)
    return tmp_path


def test_the_root_is_the_environment_unless_it_is_given(root, monkeypatch, tmp_path):
    monkeypatch.setenv("FENCHEL_DATA", str(root))
    assert load("fashion-mnist").images.equal(SPLIT[0])
    other = write_idx_folder(tmp_path / "other" / "fashion_mnist", (255 - SPLIT[0], SPLIT[1]), SPLIT).parent
    assert load("fashion-mnist", root=other).images.equal(255 - SPLIT[0])


def test_the_training_split_is_the_default(root):
    write_idx_folder(root / "fashion_mnist", SPLIT, (255 - SPLIT[0], SPLIT[1]))
    assert load("fashion-mnist", root=root).images.equal(SPLIT[0])
    assert load("fashion-mnist", split="test", root=root).images.equal(255 - SPLIT[0])


def test_no_root(root):
    message = r"'fashion-mnist' is read from files, and neither FENCHEL_DATA nor a root says where .*/zalandoresearch"
    with pytest.raises(InputError, match=message):
        load("fashion-mnist")


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_what_is_not_there_says_where_it_is_published(root, name):
    message = rf"'{name}' is not under .*, which has fashion_mnist; expected .* https://www.cs.toronto.edu/~kriz/cifar.html"
    with pytest.raises(InputError, match=message):
        load(name, root=root)


def test_a_root_that_is_no_folder(root, monkeypatch):
    with pytest.raises(InputError, match=r"root is .*nowhere, which does not exist"):
        load("fashion-mnist", root=root / "nowhere")
    (root / "file").write_text("")
    monkeypatch.setenv("FENCHEL_DATA", str(root / "file"))
    with pytest.raises(InputError, match=r"FENCHEL_DATA is .*file, which is a file"):
        load("fashion-mnist")


def test_an_unknown_name_lists_what_there_is(root, monkeypatch):
    with pytest.raises(
        InputError, match=r"'mnist' is neither .* fashion-mnist, cifar10, cifar100 \(under .*not set"
    ):
        load("mnist")
    monkeypatch.setenv("FENCHEL_DATA", str(root))
    with pytest.raises(
        InputError, match=r"cifar100 \(under .*, which has fashion-mnist\), a folder or npz file"
    ):
        load("mnist")
    with pytest.raises(InputError, match="which has none of them"):
        load("mnist", root=empty(root))


def empty(root: Path) -> Path:
    (root / "empty").mkdir()
    return root / "empty"


def test_a_split_that_there_is_not(root):
    with pytest.raises(InputError, match=r"split is 'validation'; expected 'train' or 'test'"):
        load("fashion-mnist", split="validation", root=root)


def test_paths_with_nothing_to_read(root):
    with pytest.raises(InputError, match=r"empty has nothing in it; expected four IDX files"):
        load(empty(root))
    with pytest.raises(
        InputError, match=r"is a single file; .* Its folder can be read: give .*fashion_mnist"
    ):
        load(root / "fashion_mnist" / "train-images-idx3-ubyte.gz")
    (root / "notes.txt").write_text("x")
    with pytest.raises(InputError, match=r"notes.txt is a single file; expected an npz file"):
        load(root / "notes.txt")


@pytest.mark.skipif(
    os.name != "posix" or os.geteuid() == 0, reason="whoever may read everything is never refused"
)
def test_a_file_that_may_not_be_read(root):
    (root / "fashion_mnist" / "train-images-idx3-ubyte.gz").chmod(0)
    with pytest.raises(InputError, match="cannot be read: Permission denied"):
        load("fashion-mnist", root=root)


def test_idx_files_need_torch_alone(root):
    program = (
        "import sys\n"
        "for name in ('numpy', 'PIL', 'datasets', 'safetensors'): sys.modules[name] = None\n"
        "from fenchel.data import load\n"
        f"found = load('fashion-mnist', root={str(root)!r})\n"
        "print(len(found), found.digest)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["10", load("fashion-mnist", root=root).digest]
