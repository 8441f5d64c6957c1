"""Files that load a run, as examples have them, with a small model of ``fenchel.nn`` or of transformers."""

from pathlib import Path

_BATCHES = """
def batches(name):
    generator = torch.Generator().manual_seed(0)
    for place in range(3):
        ids = torch.randint(1, 20, (4, 6), generator=generator)
        lengths = [6, 5, 4, 3]
        mask = torch.tensor([[column < length for column in range(6)] for length in lengths])
        labels = torch.randint(3, (4,), generator=generator)
        texts = beside.texts(ids, lengths)
        yield {
            "inputs": {name: ids, "attention_mask": mask},
            "tokens": texts,
            "documents": [1 + 4 * place + row for row in range(4)],
            "windows": [1] * 4,
            "loss": lambda output, labels=labels: cross_entropy(logits(output), labels, reduction="none"),
            "score": lambda output, labels=labels: (logits(output).argmax(-1) == labels).double(),
        }


def logits(output):
    return getattr(output, "logits", output)
"""

_COMMON = """
WORDS = ("cat", "sat", "mat", "dog", "ran", ".")


def texts(ids, lengths):
    rows = zip(ids.tolist(), lengths, strict=True)
    return [["[CLS]", *(WORDS[number % 6] for number in row[1:length])] for row, length in rows]
"""

LAYERS = f"""
import beside
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fenchel.nn import MultiheadAttention


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.classes = nn.Embedding(20, 16), nn.Linear(16, 3)
        self.attention = MultiheadAttention(16, 2, batch_first=True, estimator="ESTIMATOR", alpha=4.0)

    def forward(self, numbers, attention_mask):
        x = self.embed(numbers)
        x = x + self.attention(x, x, x, key_padding_mask=~attention_mask, need_weights=False)[0]
        return self.classes(x.mean(1))

{_BATCHES}

def load(folder):
    torch.manual_seed(int((folder / "seed.txt").read_text()))
    return Reader(), list(batches("numbers"))
"""

TRANSFORMERS = f"""
import beside
import torch
from torch.nn.functional import cross_entropy
from transformers import BertConfig, BertForSequenceClassification

from fenchel.integrations.transformers import register

{_BATCHES}

def load(folder):
    register()
    torch.manual_seed(int((folder / "seed.txt").read_text()))
    sizes = {{"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2}}
    config = BertConfig(**sizes, vocab_size=20, num_labels=3, initializer_range=0.5, attn_implementation="ESTIMATOR")
    return BertForSequenceClassification(config), list(batches("input_ids"))
"""


def written(folder: Path, code: str, estimator: str) -> tuple[Path, Path]:
    """The loader, with a module beside it that it imports, and the folder of a run."""
    (folder / "scripts").mkdir()
    (folder / "scripts" / "beside.py").write_text(_COMMON)
    loader, run = folder / "scripts" / "reading.py", folder / "run"
    loader.write_text(code.replace("ESTIMATOR", estimator))
    run.mkdir()
    (run / "seed.txt").write_text("3")
    return loader, run
