"""Folders and the bundled encoder are loaded with their digest and leave no trace in settings."""

import json
import os
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from fenchel.errors import MissingExtraError, ModelError
from fenchel.integrations.registry import require_transformers
from fenchel.integrations.transformers import automatic_class, language_head, load_model
from tests.swap.small_swaps import FAMILIES, language_model, tokenizer_of
from tests.tiny_models import configured, tiny_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny BERT with a tokenizer, as save_pretrained leaves them."""
    from transformers import BertTokenizer

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c"]
    saved = tmp_path / "tiny"
    tiny_model("bert", dtype=torch.float32).save_pretrained(saved)
    (saved / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    BertTokenizer(str(saved / "vocab.txt")).save_pretrained(saved)
    return saved


def test_the_demo_encoder_is_bundled(capfd: pytest.CaptureFixture[str]) -> None:
    model, tokenizer, info = load_model("demo")
    assert (info.model_class, info.dtype, info.device) == ("BertModel", "float32", "cpu")
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", str(info.revision))
    assert not model.training
    ids = tokenizer("hello world", return_tensors="pt")
    assert model(**ids).last_hidden_state.shape == (1, 4, 384)
    assert capfd.readouterr() == ("", "")


def test_a_folder_is_loaded_with_its_dtype_and_digest(folder: Path) -> None:
    model, tokenizer, info = load_model(folder, dtype=torch.float64)
    assert model.dtype == torch.float64
    assert info.dtype == "float64"
    assert tokenizer.convert_tokens_to_ids("b") == 6
    expected = tiny_model("bert", dtype=torch.float32).double()
    assert torch.equal(model.embeddings.word_embeddings.weight, expected.embeddings.word_embeddings.weight)
    assert load_model(folder)[2].revision == info.revision
    assert load_model(folder, dtype="bfloat16")[0].dtype == torch.bfloat16
    tiny_model("bert", dtype=torch.float32, seed=1).save_pretrained(folder)
    assert load_model(folder)[2].revision != info.revision


def test_the_digest_is_of_configuration_and_tokenizer_too(folder: Path) -> None:
    found = {load_model(folder)[2].revision}
    (folder / "README.md").write_text("nothing that is loaded")
    assert {load_model(folder)[2].revision} == found
    for name in ("config", "tokenizer_config", "tokenizer", "special_tokens_map"):
        file = folder / f"{name}.json"
        file.write_text((file.read_text() if file.exists() else "{}") + "\n", encoding="utf-8")
        found.add(load_model(folder)[2].revision)
    assert len(found) == 5


def test_the_digest_is_of_the_files_that_an_index_names(folder: Path) -> None:
    def reshard(seed: int) -> str | None:
        weights = tiny_model("bert", dtype=torch.float32, seed=seed).state_dict()
        shards = folder / "shards"
        shards.mkdir(exist_ok=True)
        save_file({name: tensor.contiguous() for name, tensor in weights.items()}, shards / "all.safetensors")
        save_file({"unused": torch.zeros(1)}, folder / "other.safetensors")
        index = {"metadata": {}, "weight_map": dict.fromkeys(weights, "shards/all.safetensors")}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        return load_model(folder)[2].revision

    (folder / "model.safetensors").unlink()
    assert reshard(0) == reshard(0) != reshard(1)


def test_verbosity_and_environment_are_put_back(folder: Path) -> None:
    from transformers.utils import logging

    environment = dict(os.environ)
    before = (logging.get_verbosity(), logging.is_progress_bar_enabled())
    load_model(folder)
    with pytest.raises(ModelError):
        load_model(folder / "nowhere")
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before
    assert dict(os.environ) == environment


def drop(folder: Path, *names: str) -> None:
    file = folder / "model.safetensors"
    kept = {k: v for k, v in load_file(file).items() if not k.startswith(names)}
    save_file(kept, file, metadata={"format": "pt"})


def without_tokenizer(folder: Path) -> None:
    for file in folder.iterdir():
        if "token" in file.name or "vocab" in file.name:
            file.unlink()


def cut(file: str) -> Callable[[Path], object]:
    return lambda folder: (folder / file).write_bytes((folder / file).read_bytes()[:40])


SPOILED: dict[str, tuple[Callable[[Path], object], str]] = {
    "pickled weights": (
        lambda folder: (folder / "model.safetensors").rename(folder / "pytorch_model.bin"),
        r"as pickle only \(pytorch_model.bin\).*expected safetensors",
    ),
    "no configuration": (lambda folder: (folder / "config.json").unlink(), "no config.json"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "no weights"),
    "no tokenizer": (without_tokenizer, "tokenizer"),
    "a configuration cut short": (cut("config.json"), "^the model of .* cannot be loaded: "),
    "weights cut short": (cut("model.safetensors"), "^the model of .* cannot be loaded: "),
    "a tokenizer cut short": (cut("tokenizer.json"), "^the tokenizer of .* cannot be loaded: "),
    "a nested configuration": (lambda folder: (folder / "config.json").write_text("[" * 100_000), "cannot be loaded"),
    "too many layers": (lambda folder: configured(folder, num_hidden_layers=10**6), "asks for 1,000,000 layers"),
    "no dropout": (lambda folder: configured(folder, hidden_dropout_prob=float("nan")), "a dropout of nan"),
    "no length": (
        lambda folder: configured(folder, "tokenizer_config.json", model_max_length="far"), "model_max_length 'far'"
    ),
    "another size": (
        lambda folder: configured(folder, intermediate_size=16),
        r"do not fit its config.json: .*has shape \(32.*gives \(16",
    ),
    "missing weights, which are not made up": (
        lambda folder: drop(folder, "encoder.layer.1.attention"),
        r"lack 10 parameters of BertModel .*'encoder.layer.1.attention",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("spoil", "message"), SPOILED.values(), ids=SPOILED)
def test_a_folder_that_cannot_be_loaded_says_why_in_one_line(folder: Path, spoil: Any, message: str) -> None:
    with pytest.raises(ModelError, match=r"model.safetensors is a file; expected the folder"):
        load_model(folder / "model.safetensors")
    spoil(folder)
    with pytest.raises(ModelError, match=message):
        load_model(folder)


def test_code_that_comes_with_a_model_is_not_run(folder: Path) -> None:
    configured(folder, model_type="unheard-of", auto_map={"AutoConfig": "code.C", "AutoModel": "code.M"})
    (folder / "code.py").write_text(f"open({str(folder / 'ran')!r}, 'w')", encoding="utf-8")
    with pytest.raises(ModelError, match="needs custom code"):
        load_model(folder)
    assert not (folder / "ran").exists()


def test_a_missing_pooler_is_no_loss(folder: Path) -> None:
    drop(folder, "pooler")
    assert load_model(folder)[2].model_class == "BertModel"


SHA = "0123456789abcdef0123456789abcdef01234567"


def hub(monkeypatch: pytest.MonkeyPatch, *files: str, error: Exception | None = None) -> None:
    """Sets what HfApi.model_info answers."""

    def model_info(_api: Any, name: str, **options: Any) -> Any:
        if error is not None:
            raise error
        return SimpleNamespace(sha=SHA, siblings=[SimpleNamespace(rfilename=file) for file in files])

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", model_info)


def hub_error(kind: str) -> Exception:
    """Made without its initialiser, which wants a response of whichever HTTP client is in use."""
    from huggingface_hub import errors

    found: type[Exception] = getattr(errors, kind)
    return found.__new__(found, "no")


NO_NETWORK = OSError("Name or service not known")


def test_what_the_hub_says_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also without a network and a cache, and of pickled weights, before they are fetched."""
    for error, message in (
        (hub_error("RepositoryNotFoundError"), "no model 'some/model'.*Check the spelling"),
        (hub_error("RevisionNotFoundError"), "some/model has no revision 'v9'"),
        (hub_error("GatedRepoError"), "some/model is gated.*log in"),
        (NO_NETWORK, r"no model 'some/model'.*does not answer \(Name or service not known\)"),
        (None, "as pickle only"),
    ):
        hub(monkeypatch, "config.json", "pytorch_model.bin", error=error)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", error is NO_NETWORK)
        with pytest.raises(ModelError, match=message):
            load_model("some/model", revision="v9")


def test_every_file_of_a_hub_model_comes_from_one_commit(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    import transformers

    hub(monkeypatch, "config.json", "model.safetensors")
    asked: list[dict[str, Any]] = []

    def local(load: Any, name: str, **options: Any) -> Any:
        asked.append({"name": name, **options})
        return load(folder, **{k: v for k, v in options.items() if k != "revision"})

    for kind in (transformers.AutoModel, transformers.AutoTokenizer):
        monkeypatch.setattr(kind, "from_pretrained", partial(local, kind.from_pretrained))
    load_model("some/model", revision="main")
    told = [(one["name"], one["revision"], one["trust_remote_code"]) for one in asked]
    assert told == [("some/model", SHA, False)] * 2
    assert asked[0]["use_safetensors"] is True


def test_transformers_that_is_too_old_or_missing_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers

    with monkeypatch.context() as patched:
        patched.setattr(transformers, "__version__", "5.3.0")
        with pytest.raises(ModelError, match=r"transformers 5.3.0 is installed; 5.4 or newer"):
            require_transformers()
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtraError, match=r"\[hf\]"):
        require_transformers()


def test_heads_are_told_by_class():
    for head, names in {
        "masked": ("BertForMaskedLM", "BertForPreTraining"),
        "causal": ("BertLMHeadModel", "LlamaForCausalLM"),
        "seq2seq": ("BartForConditionalGeneration", "MarianMTModel"),
        None: ("BertModel", "BertForSequenceClassification", "ElectraForPreTraining"),
    }.items():
        assert {language_head(name) for name in names} == {head}
    config = SimpleNamespace(architectures=["BertForMaskedLM", "BertLMHeadModel"])
    with pytest.raises(ModelError, match="names BertForMaskedLM, BertLMHeadModel, whose heads differ"):
        automatic_class(config, "mine")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_saved_head_is_loaded_when_it_is_wanted(family: str, tmp_path: Path):
    saved = language_model(family, dtype=torch.float32)
    saved.save_pretrained(tmp_path)
    tokenizer_of(family).save_pretrained(tmp_path)
    model, _, info = load_model(tmp_path, with_head=True)
    assert info.model_class == type(saved).__name__
    assert not model.training
    for name, parameter in saved.state_dict().items():
        # Marian's sinusoids are worked out anew and not saved; only the tiny model has others.
        assert "embed_positions" in name or torch.equal(model.state_dict()[name], parameter), name
    without, _, _ = load_model(tmp_path)
    assert language_head(type(without).__name__) is None
    if family == "marian":
        positions = without.get_encoder().embed_positions.weight.detach()
        angles = torch.arange(len(positions))[:, None] / 10_000 ** (torch.arange(12) / 12)
        worked_out = torch.cat([angles.sin(), angles.cos()], -1)
        torch.testing.assert_close(positions, worked_out, atol=1e-5, rtol=0)


def test_a_checkpoint_of_the_body_alone_has_no_head(tmp_path: Path):
    language_model("bert", dtype=torch.float32).base_model.save_pretrained(tmp_path)
    tokenizer_of("bert").save_pretrained(tmp_path)
    assert load_model(tmp_path, with_head=True)[2].model_class == "BertModel"
    # A configuration that promises a head which the weights lack must not bring a random one.
    configured(tmp_path, architectures=["BertForMaskedLM"])
    with pytest.raises(ModelError, match=r"parameters of BertForMaskedLM .* which would be random"):
        load_model(tmp_path, with_head=True)
