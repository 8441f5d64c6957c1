"""Every kind of attention as a call of ``infer``, and the problems of the core and slow twins by which it is judged."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fenchel import Discrete, GaussianMixture, InferenceProblem, OptimalTransport, Tsallis
from fenchel import functional as F
from fenchel.functional.relative import distance_index
from tests.functional.calls import call

TIGHT: dict[str, dict[str, Any]] = {"first_order": {}, "second_order": {}, "exact": {"tol": 1e-11}}
"""Options of estimators under which what is solved is solved to rounding."""

SHARED = ("query", "key", "value", "log_preference", "alpha", "scale")
Tensors = dict[str, Any]


def of_query_heads(tensor: Tensor) -> Tensor:
    """What heads of the keys have, by heads of the query."""
    return tensor.repeat_interleave(4 // tensor.shape[1], 1)


@dataclass(frozen=True)
class Op:
    """One kind of attention.

    Attributes:
        options: Of ``infer``, from the tensors of a call.
        extras: Shapes of further tensors, given heads of the keys, queries and keys; those whose names end in ``s`` are
            positive.
        takes: Which of a preference, grouped heads, dropout and masks of what is left out there are.
        queries: As many as keys where tokens are both.
        of_keys: Extras with one entry a key.
        closeness: The problem's, from the tensors.
    """

    options: Callable[[Tensors], dict[str, Any]]
    extras: Callable[[int, int, int], dict[str, tuple[int, ...]]] = lambda heads, m, n: {}
    takes: tuple[str, ...] = ("preference", "groups", "dropout", "removal")
    queries: int = 5
    of_keys: tuple[str, ...] = ()
    closeness: Callable[[Tensors], Any] = lambda tensors: None

    def call(
        self, *, preference: tuple[int, ...] | None = None, key_heads: int = 4, **options: Any
    ) -> Tensors:
        """Tensors of a call that all require gradients, in float64 unless a dtype is given."""
        if "preference" not in self.takes:
            preference = None
        key_heads = key_heads if "groups" in self.takes else 4
        given = {"queries": self.queries, **options}
        tensors = call(preference=preference, key_heads=key_heads, **given)
        generator = torch.Generator().manual_seed(1)
        for name, shape in self.extras(key_heads, *(tensors[of].shape[2] for of in ("query", "key"))).items():
            drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
            drawn = 0.5 + drawn.abs() / 2 if name.endswith("s") else drawn
            tensors[name] = drawn.to(tensors["query"].dtype).requires_grad_()
        return tensors


def infer(op: Op, tensors: Tensors, estimator: str, **options: Any) -> F.Inference:
    given: dict[str, Any] = {name: tensors[name] for name in SHARED if name in tensors}
    groups = {"enable_gqa": True} if tensors["key"].shape[1] != tensors["query"].shape[1] else {}
    solving = {**TIGHT[estimator], **options}
    return F.infer(**given, **op.options(tensors), **groups, estimator=estimator, **solving)


def leaves(tensors: Tensors) -> dict[str, Tensor]:
    return {name: x for name, x in tensors.items() if isinstance(x, Tensor) and x.requires_grad}


def _of_pairs(table: Tensor, index: Tensor) -> Tensor:
    wide = table.expand(2, 4, -1, -1)
    return torch.stack([wide[b][:, index[b] if index.dim() == 3 else index] for b in range(2)])


def judged(op: Op, tensors: Tensors, estimator: str) -> tuple[Any, Tensor, Tensor]:
    """Every query's problem, solved; its weights (B, H, m, n); and their mean of the values, (B, H, m, d_v)."""
    query, scale, alpha = (
        tensors["query"],
        tensors["scale"],
        tensors["alpha"].expand(2, 4, tensors["query"].shape[2]),
    )
    key, value, log_u = (
        of_query_heads(tensors["key"]),
        of_query_heads(tensors["value"]),
        tensors.get("log_preference"),
    )
    variant = op.options(tensors).get("variant")
    if isinstance(variant, F.Relative):
        m, n = query.shape[2], key.shape[2]
        index = distance_index(m, n, key.device) if variant.index is None else variant.index
        templates = scale * (key.unsqueeze(2) + _of_pairs(variant.table, index))
        level = None if log_u is None else log_u.expand(2, 4, m, n).unsqueeze(-2)
        problem = InferenceProblem(
            Discrete(templates, level), query.unsqueeze(-2), alpha.unsqueeze(-1), op.closeness(tensors)
        )
        found = problem.solve(estimator, **TIGHT[estimator])
        weights = found.weights.squeeze(-2)
        output = weights @ value
        if variant.value_table is not None:
            output = output + torch.einsum("bhij,bhijd->bhid", weights, _of_pairs(variant.value_table, index))
        return found, weights, output
    if isinstance(variant, F.Mixture):
        level = query.new_zeros(key.shape[2]) if log_u is None else log_u
        variances = (scale.square() * variant.variances).expand(*variant.variances.shape[:3], key.shape[3])
        u: Any = GaussianMixture(scale * key, of_query_heads(variances), level.log_softmax(-1))
        found = InferenceProblem(u, query, alpha).solve(estimator, **TIGHT[estimator])
        weights = u.responsibilities(found.dual)
        return found, weights, weights @ value
    if isinstance(variant, F.Hashing):
        rule = {name: part for name, part in vars(variant).items() if name != "buckets"}
        log_u = F.hashing_log_preference(variant.buckets, dtype=query.dtype, **rule)
    closeness, values = op.closeness(tensors), value
    if isinstance(variant, F.Transport):
        atoms, opened = None if variant.atoms is None else scale * variant.atoms, None
        if log_u is not None:  # a masked key gets no weight either
            may = log_u.expand(2, 4, *log_u.shape[-2:] if log_u.dim() > 1 else (1, -1)) > -torch.inf
            opened = (
                may if atoms is None else torch.cat([may, may.new_ones(*may.shape[:-1], atoms.shape[2])], -1)
            )
        closeness = OptimalTransport(variant.cost, variant.gamma, atoms, allowed=opened, warn=False)
        values = (
            value
            if variant.atom_values is None
            else torch.cat([value, variant.atom_values.expand(2, 4, -1, -1)], 2)
        )
    problem = InferenceProblem(Discrete(scale * key, log_u), query, alpha, closeness)
    found = problem.solve(estimator, **TIGHT[estimator])
    return found, found.weights, found.weights @ values


def _sparse(closeness: Callable[[Tensors], Tsallis], **extras: tuple[int, ...]) -> Op:
    return Op(lambda x: {"closeness": closeness(x)}, lambda heads, m, n: extras, closeness=closeness)


INDEX = torch.randint(6, (2, 5, 7), generator=torch.Generator().manual_seed(3))
BUCKETS = torch.randint(3, (2, 4, 2, 7), generator=torch.Generator().manual_seed(4))
WITHOUT_REMOVAL = ("preference", "groups", "dropout")

OPS: dict[str, Op] = {
    "softmax": Op(lambda x: {}),
    "sparsemax": _sparse(lambda x: Tsallis(2.0, temperature=x["temperatures"]), temperatures=()),
    "entmax15": _sparse(lambda x: Tsallis(1.5)),
    "csiszar": _sparse(lambda x: Tsallis(0.7 + x["orders"], "csiszar", 0.5), orders=()),
    "orders of heads": _sparse(
        lambda x: Tsallis(0.6 + x["orders"], temperature=x["temperatures"]), orders=(4, 1), temperatures=(4, 1)
    ),
    "relative": Op(
        lambda x: {"variant": F.Relative(x["table"], value_table=x["value table"])},
        lambda heads, m, n: {"table": (1, 4, m + n - 1, 3), "value table": (1, 4, m + n - 1, 2)},
        WITHOUT_REMOVAL,
    ),
    "relative by an index": Op(
        lambda x: {"variant": F.Relative(x["table"], x.get("index", INDEX))},
        lambda heads, m, n: {"table": (2, 4, 6, 3)},
    ),
    "relative, sparse": Op(
        lambda x: {"variant": F.Relative(x["table"]), "closeness": Tsallis(1.5)},
        lambda heads, m, n: {"table": (1, 1, m + n - 1, 3)},
        WITHOUT_REMOVAL,
        closeness=lambda x: Tsallis(1.5),
    ),
    "mixture": Op(
        lambda x: {"variant": F.Mixture(x["variances"])},
        lambda heads, m, n: {"variances": (2, heads, n, 3)},
        of_keys=("variances",),
    ),
    "mixture, spherical": Op(
        lambda x: {"variant": F.Mixture(x["variances"])},
        lambda heads, m, n: {"variances": (2, heads, n, 1)},
        of_keys=("variances",),
    ),
    "transport": Op(
        lambda x: {"variant": F.Transport(x["gammas"], "squared_euclidean")},
        lambda heads, m, n: {"gammas": (4, 1)},
        ("preference", "removal"),
    ),
    "transport to atoms": Op(
        lambda x: {"variant": F.Transport(x["gammas"], "cosine", x["atoms "], x["atom values "])},
        lambda heads, m, n: {"gammas": (4, 1), "atoms ": (1, 4, 3, 3), "atom values ": (2, 4, 3, 2)},
        ("preference", "removal"),
    ),
    "hashing": Op(
        lambda x: {"variant": F.Hashing(x.get("buckets", BUCKETS), chunk=3, causal=True)}, takes=(), queries=7
    ),
}  # fmt: skip
