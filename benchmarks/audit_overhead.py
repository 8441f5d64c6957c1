"""A whole audit against the model's own forward pass, on the same batches in the same run."""

from __future__ import annotations

import argparse

import torch

from benchmarks.demo_encoder import demo, token_ids
from benchmarks.recording import compare, record
from fenchel.auditing import audit

DOCUMENTS = {128: 16, 512: 4}
TARGETS = {128: 5.0, 512: 20.0}


def measure_overhead(length: int, batch_size: int, rounds: int) -> dict[str, object]:
    model, tokenizer = demo()
    ids = token_ids(tokenizer, length, DOCUMENTS[length])
    batches = [{"input_ids": part, "attention_mask": torch.ones_like(part)} for part in ids.split(batch_size)]

    def forward() -> None:
        with torch.no_grad():
            for batch in batches:
                model(**batch)

    times = compare({"forward": forward, "audit": lambda: audit(model, None, batches)}, rounds)
    ratio = times["audit"]["median_s"] / times["forward"]["median_s"]
    return {
        "tokens": length,
        "batch_size": batch_size,
        "documents": DOCUMENTS[length],
        "times": times,
        "ratio": ratio,
        "target": TARGETS[length],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    record(
        "audit_overhead",
        {"runs": [measure_overhead(n, b, rounds) for n in (128, 512) for b in (1, 4)]},
    )


if __name__ == "__main__":
    main()
