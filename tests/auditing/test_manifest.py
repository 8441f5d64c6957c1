from __future__ import annotations

import json
import platform
from types import SimpleNamespace
from typing import Any

import torch

from fenchel.auditing.manifest import CONVENTIONS, KEYS, OUTCOMES, PARTS, PLACES, describe, in_order
from fenchel.io.runs import Shard
from fenchel.loading import RunModel
from fenchel.options import AuditOptions
from tests.tiny_models import tiny_model


def described(**changes: Any) -> dict[str, Any]:
    model = tiny_model("bert", dtype=torch.bfloat16)
    batches: Any = SimpleNamespace(
        description="a.txt", text_sha256="00", max_length=128, stride=64, batch_size=4, batches=list
    )
    options: dict[str, Any] = {
        **{"space": "key", "alpha": 0.5, "tol": 1e-3, "seed": 0, "max_tokens": None, "baseline": None},
        **{
            "max_length": 128,
            "stride": 64,
            "batch_size": 4,
            "memory_budget": 1,
            "checkpoint_seconds": 60,
            "queries": None,
            "loader": None,
            "closeness": None,
            "even_so": False,
        },
        **{"layers": (2, 1), "heads": None, "shard": Shard(1, 3), "device": None, "dtype": None},
        **{"whole_file": False, "text_column": None, "target_column": None, "revision": None},
        **{"observer": None, "directory": None, "resume": False, "overwrite": False, "keep_queries": False},
    }
    named = {"name": "some/model", "revision": None}
    found = RunModel(model, None, **(named | {key: changes[key] for key in named if key in changes}))
    others = {key: value for key, value in changes.items() if key not in named}
    return describe(found, batches, AuditOptions.checked(**(options | others)))


WHERE_GIVEN = (
    "reads",
    "closeness",
    "even_so",
    "loader",
    "loader_sha256",
    "queries",
    "whole_file",
    "text_column",
    "target_column",
)


def test_a_manifest_is_json_in_a_fixed_order() -> None:
    manifest = described()
    assert json.loads(json.dumps(manifest, allow_nan=False)) == manifest
    assert list(manifest) == [key for key in KEYS if key in manifest]
    assert set(KEYS) - set(manifest) == set(WHERE_GIVEN)
    assert list(in_order(json.loads(json.dumps(manifest, sort_keys=True)))) == list(manifest)
    assert list(in_order({**manifest, "zeta": 1, "eta": 2}))[-2:] == ["eta", "zeta"]


def test_a_manifest_says_what_the_model_is() -> None:
    manifest = described()
    assert (manifest["model"], manifest["revision"]) == ("some/model", None)
    assert (manifest["dtype"], manifest["device"]) == ("bfloat16", "cpu")
    assert manifest["model_class"] == "BertModel"
    assert manifest["layers"] == [1, 2]
    assert manifest["shard"] == "1/3"
    assert manifest["python"] == platform.python_version()
    assert manifest["convention"] == CONVENTIONS["key"] != CONVENTIONS["input"]
    assert described(name="demo", revision="def")["model"] == "demo"
    assert described(name="demo", revision="def")["revision"] == "def"


def test_options_of_the_text_are_there_if_given() -> None:
    manifest = described(whole_file=True, text_column="body")
    assert manifest["whole_file"] is True
    assert manifest["text_column"] == "body"
    assert "target_column" not in manifest


def test_what_may_differ() -> None:
    assert set(KEYS) > OUTCOMES | PLACES | PARTS
