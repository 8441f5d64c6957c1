"""Attention over a whole vocabulary: words that are not in the sentence get weight, and so they can learn.

The templates are the word embeddings of the bundled sentence encoder, at norm 1. Attention has weight for the words
of the sentence alone. Optimal transport moves part of it to words that are like them: the other words of the
vocabulary, some twenty thousand, are atoms that no preference is given to. The script asks with a word of the
sentence, shows where the weight went, and which embeddings a gradient would change.

    python examples/synonyms.py [GAMMA]
"""

import time

import torch
from torch import Tensor

import fenchel
from experiment import run_positional
from fenchel import functional as F
from fenchel.integrations.transformers import load_model

SENTENCE = "the doctor quickly bought a large car"
SYNONYMS = ("physician", "rapidly", "swiftly", "purchased", "huge", "big", "vehicle", "automobile")
ALPHA = 0.05


def vocabulary() -> tuple[list[str], Tensor]:
    """All whole words of the encoder, and their embeddings at norm 1."""
    model, tokenizer, _ = load_model("demo")
    entries = tokenizer.get_vocab().items()
    words = {word: place for word, place in entries if word.isascii() and word.isalpha() and len(word) > 1}
    table = model.get_input_embeddings().weight.detach()
    return list(words), torch.nn.functional.normalize(table[list(words.values())], dim=-1)


def main(gamma: float = 0.08) -> None:
    """Attend to a sentence, with and without the rest of the vocabulary."""
    words, embeddings = vocabulary()
    there = [words.index(word) for word in SENTENCE.split() if word in words]
    sentence = [words[i] for i in there]
    absent = [i for i in range(len(words)) if i not in there]
    templates, atoms = embeddings[there].requires_grad_(), embeddings[absent].requires_grad_()
    query = embeddings[there[sentence.index("doctor")]].unsqueeze(0)

    # At norm 1, C - a.b is cosine cost, and every template is nearest to itself.
    transport = fenchel.OptimalTransport("dot", gamma, atoms)
    problem = fenchel.InferenceProblem(fenchel.Discrete(templates), query, ALPHA, transport)
    weights = problem.solve("first_order").weights[0].detach()
    stayed, moved = weights[: len(there)], weights[len(there) :]
    print(f"'{SENTENCE}', asked with 'doctor'; {len(absent)} words are not in it.")
    print(f"Stays with the words of the sentence: {stayed.sum():.1%}. Moves to others: {moved.sum():.1%}.")

    order = moved.argsort(descending=True)
    first = moved[order[:100]].sum() / moved.sum()
    print(f"Of what moves, the hundred words that get most have {first:.0%}; the rest is spread thinly.")
    like = (atoms @ templates.mT).argmax(-1)
    for place, word in enumerate(sentence):
        reached = [i for i in order.tolist() if like[i] == place][:4]
        result = ", ".join(f"{words[absent[i]]} {moved[i]:.2%}" for i in reached)
        print(f"  {word:8} {stayed[place]:5.1%}   absent: {result}")

    rank = {absent[i]: place + 1 for place, i in enumerate(order.tolist())}
    listed = ", ".join(f"{word} {rank[words.index(word)]}" for word in SYNONYMS)
    print(f"Synonyms by weight among absent words: {listed}")

    q, k, a = (rows[None, None] for rows in (query, templates, atoms))  # one sequence, one head
    start = time.perf_counter()
    mean = F.transport_attention(q, k, k, atoms=a, atom_values=a, gamma=gamma, alpha=ALPHA)
    seconds = time.perf_counter() - start
    error = (mean - weights @ torch.cat([templates, atoms])).abs().max()
    print(f"F.transport_attention averages over all words in {1e3 * seconds:.0f} ms; its mean differs from")
    print(f"that under these weights by {error:.0e}.")
    (gradient,) = torch.autograd.grad(mean.square().sum(), atoms)
    reached = gradient.norm(dim=-1)
    first = ", ".join(words[absent[i]] for i in reached.argsort(descending=True)[:5].tolist())
    print(f"Its gradient reaches {int((reached > 0).sum())} absent words, most of all {first}.")


if __name__ == "__main__":
    run_positional(main, __doc__)
