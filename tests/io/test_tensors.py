from __future__ import annotations

import hashlib
import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from fenchel.errors import InputError
from fenchel.io.schema import Record
from fenchel.io.storage import Form, json_text, read_tensors, write_tensors
from tests.damage import refuses, refuses_every_damage


class _State(Record):
    finished: bool
    words: list[str]


STATE = Form("state", 2, _State, "Start anew.")
DESCRIPTION: dict[str, Any] = {"finished": False, "words": ["ä"]}


def tensors_to_save() -> dict[str, torch.Tensor]:
    return {"counts": torch.arange(5), "maxima": torch.tensor([0.1, math.inf])}


def test_tensors_come_back_with_what_describes_them(tmp_path: Path) -> None:
    path, tensors = tmp_path / "state.safetensors", tensors_to_save()
    write_tensors(path, STATE, tensors, DESCRIPTION)
    read, description = read_tensors(path, STATE)
    assert description == DESCRIPTION
    assert read.keys() == tensors.keys()
    assert all(
        torch.equal(read[name], tensors[name]) and read[name].dtype == tensors[name].dtype for name in read
    )
    first = path.read_bytes()
    write_tensors(path, STATE, dict(reversed(tensors.items())), {"words": ["ä"], "finished": False})
    assert path.read_bytes() == first


def test_the_file_is_one_that_safetensors_reads_and_anybody_can_check(tmp_path: Path) -> None:
    from safetensors import safe_open

    path = tmp_path / "state.safetensors"
    write_tensors(path, STATE, tensors_to_save(), DESCRIPTION)
    with safe_open(str(path), framework="pt") as file:
        sealed, _, described = file.metadata()["fenchel"].partition(" ")
    assert json.loads(described) == {"format": "state", "schema": 2, "description": DESCRIPTION}
    content = path.read_bytes()
    digits = sealed.removeprefix("sha256:").encode()
    assert sealed == "sha256:" + hashlib.sha256(content.replace(digits, b"0" * 64)).hexdigest()


def test_the_digest_of_a_content_never_changes(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    write_tensors(path, STATE, tensors_to_save(), DESCRIPTION)
    written = hashlib.sha256(path.read_bytes()).hexdigest()
    assert written == "863238f59f22294ccde30f5690fcf76c3ef902500d1e18b30672d466da9e4993"


def test_any_damage_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    write_tensors(path, STATE, tensors_to_save(), DESCRIPTION)
    refuses_every_damage(path, lambda: read_tensors(path, STATE), count=1_000)


def test_another_kind_and_another_version_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    write_tensors(path, replace(STATE, name="checkpoint"), {}, DESCRIPTION)
    assert "holds a checkpoint, not a state. Start anew." in refuses(path, lambda: read_tensors(path, STATE))
    write_tensors(path, replace(STATE, version=3), {}, DESCRIPTION)
    message = refuses(path, lambda: read_tensors(path, STATE))
    assert "has schema 3 of a state, of a later version of fenchel; this one reads schema 2" in message
    write_tensors(path, STATE, {}, {**DESCRIPTION, "finished": 0})
    assert "finished is 0; expected a valid boolean" in refuses(path, lambda: read_tensors(path, STATE))


def test_an_earlier_version_without_a_digest_is_refused_as_such(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    save_file(tensors_to_save(), path, metadata={"fenchel": json_text({"schema": 1})})
    message = refuses(path, lambda: read_tensors(path, STATE))
    assert "has schema 1 and no digest, as an earlier version of fenchel wrote them" in message


def test_what_is_no_state_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nothing\.safetensors cannot be read: No such file"):
        read_tensors(tmp_path / "nothing.safetensors", STATE)
    with pytest.raises(InputError, match="is not a file"):
        read_tensors(tmp_path, STATE)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="is not a file"):
        read_tensors(tmp_path / "pipe", STATE)
    path = tmp_path / "foreign.safetensors"
    save_file({"a": torch.zeros(1)}, path)
    assert "another program's" in refuses(path, lambda: read_tensors(path, STATE))
    save_file({"a": torch.zeros(1)}, path, metadata={"fenchel": "sha256:"})
    assert "another program's" in refuses(path, lambda: read_tensors(path, STATE))
    for content in (b"", b"not tensors at all", b"\x80\x04\x95.", b"\xff" * 64, b"PK\x03\x04" * 32):
        path.write_bytes(content)
        assert "is no state" in refuses(path, lambda: read_tensors(path, STATE))


@pytest.mark.parametrize("claimed", [1 << 40, (1 << 64) - 1, 99_999_999])
def test_a_header_that_claims_gigabytes_is_refused_before_they_are_taken(
    tmp_path: Path, claimed: int
) -> None:
    path = tmp_path / "state.safetensors"
    path.write_bytes(claimed.to_bytes(8, "little") + b"{}" * 50)
    assert "is no state" in refuses(path, lambda: read_tensors(path, STATE))


def test_a_tensor_that_claims_gigabytes_is_refused_before_they_are_taken(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    header = {"a": {"dtype": "F64", "shape": [1 << 40], "data_offsets": [0, 1 << 43]}}
    described = f"sha256:{'0' * 64} {json_text({'format': 'state', 'schema': 2, 'description': DESCRIPTION})}"
    text = json.dumps({"__metadata__": {"fenchel": described}, **header}, separators=(",", ":")).encode()
    content = len(text).to_bytes(8, "little") + text
    digest = hashlib.sha256(content).hexdigest().encode()
    path.write_bytes(content.replace(b"0" * 64, digest, 1))
    assert "is no state" in refuses(path, lambda: read_tensors(path, STATE))
