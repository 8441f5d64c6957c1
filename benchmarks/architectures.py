"""What the papers measure in BERT and T5, in small untrained models of ten families and in the trained demo encoder.

``python -m benchmarks.architectures`` writes ``results/architectures.json`` and a table of ``docs/paper.md``. Models
have the size of BERT-mini (4 layers, 256 wide, 4 heads) and the weights that their family starts from.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModel

from benchmarks.demo_encoder import demo
from benchmarks.recording import record
from fenchel import audit
from fenchel.errors import ModelError
from fenchel.integrations.registry import quiet

SIZE: dict[str, Any] = {
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 1024,
    "max_position_embeddings": 514,
    "pad_token_id": 0,
    "bos_token_id": 101,
    "eos_token_id": 102,
}
BART: dict[str, Any] = {
    "encoder_layers": 4,
    "decoder_layers": 4,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 1024,
    "decoder_ffn_dim": 1024,
    "decoder_start_token_id": 102,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "bert": {},
    "roberta": {},
    "albert": {"embedding_size": 128},
    "distilbert": {"hidden_dim": 1024},
    "modernbert": {"cls_token_id": 101, "sep_token_id": 102},
    "t5": {"d_kv": 64, "d_ff": 1024, "decoder_start_token_id": 0},
    "bart": BART,
    "gpt2": {"n_inner": 1024},
    "llama": {"num_key_value_heads": 4},
    "qwen3": {"num_key_value_heads": 2, "head_dim": 64},
}
READING: dict[str, Any] = {"max_tokens": 400, "max_length": 128, "queries": "all", "baseline": "none"}
SPACES = {"input": {"template_scale": "sqrt_d"}, "key": {}}
COLUMNS = {
    "input": "relative_deviation",
    "key": "relative_deviation",
    "predicted": "predicted_deviation",
    "total variation": "total_variation",
    "mean error": "mean_error",
}
SHOWN = ("input", "key", "total variation")  # on the page
ROWS = ("demo, trained", "demo, untrained", "t5", "qwen3")  # of their own on the page
PAGE = Path(__file__).parents[1] / "docs" / "paper.md"
BEGIN, END = "<!-- architectures -->", "<!-- end of architectures -->"


def measured(model: Any, tokenizer: Any) -> dict[str, dict[str, float]]:
    """The columns of each kind of attention: all but ``input`` are from space ``key``, which every family has."""
    result: dict[str, dict[str, float]] = {}
    for space, more in SPACES.items():
        try:
            report = audit(model, tokenizer, "demo", space=space, **more, **READING)
        except ModelError:
            if space == "key":
                raise
            continue
        for kind, summary in report.summary["kinds"].items():
            values = {column: summary[f"{name}_mean"] for column, name in COLUMNS.items()}
            kept = [column for column in COLUMNS if (column == "input") == (space == "input")]
            result.setdefault(kind, {}).update({column: values[column] for column in kept})
    return result


def page(rows: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    """The table of the page."""
    lines = [f"| Model | {' | '.join(SHOWN)} |", f"|---|{'---|' * len(SHOWN)}"]
    for name in ROWS:
        kinds = rows[name]
        for kind, row in kinds.items():
            cells = [f"{row[column]:.4f}" if column in row else "–" for column in SHOWN]
            called = name if len(kinds) == 1 else f"{name}, {kind.replace('_', ' ')}"
            lines.append(f"| {called} | {' | '.join(cells)} |")
    others = {name: kinds for name, kinds in rows.items() if name not in ROWS}
    rotary = [name for name, kinds in others.items() if any("input" not in row for row in kinds.values())]
    lines.append(_ranges(", ".join(rotary), [others.pop(name) for name in rotary]))
    lines.append(_ranges("the other families", list(others.values())))
    return "\n".join(lines)


def _ranges(called: str, families: Sequence[Mapping[str, Mapping[str, float]]]) -> str:
    """A row of the table: the smallest and the largest number of several families, rounded."""
    found = [[row[name] for kinds in families for row in kinds.values() if name in row] for name in SHOWN]
    cells = [f"{min(values):.4f} to {max(values):.4f}" if values else "–" for values in found]
    return f"| {called} | {' | '.join(cells)} |"


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    trained, tokenizer = demo()
    configs = {
        name: AutoConfig.for_model(name, vocab_size=len(tokenizer), **SIZE | told)
        for name, told in FAMILIES.items()
    }
    rows = {"demo, trained": measured(trained, tokenizer)}
    with quiet():
        for name, config in {"demo, untrained": trained.config, **configs}.items():
            torch.manual_seed(0)
            rows[name] = measured(AutoModel.from_config(config).eval(), tokenizer)
    record("architectures", {"rows": rows})
    before, rest = PAGE.read_text().split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{page(rows)}\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()
