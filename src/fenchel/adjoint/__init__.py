"""How gradients pass through an inference: the implicit function theorem, never the steps of a solver."""

from fenchel.adjoint.estimates import solve_with_gradients as solve_with_gradients
from fenchel.adjoint.gradients import DualGradients as DualGradients
from fenchel.adjoint.gradients import implicit_gradients as implicit_gradients
from fenchel.adjoint.gradients import second_order_gradients as second_order_gradients
from fenchel.adjoint.gradients import second_order_rows as second_order_rows
from fenchel.adjoint.implicit import implicit_dual_point as implicit_dual_point
from fenchel.adjoint.second_derivative import differentiated_once as differentiated_once
from fenchel.adjoint.second_derivative import second_derivative_of as second_derivative_of
from fenchel.adjoint.transforms import is_transformed as is_transformed

__all__ = [
    "DualGradients",
    "differentiated_once",
    "implicit_dual_point",
    "implicit_gradients",
    "is_transformed",
    "second_derivative_of",
    "second_order_gradients",
    "second_order_rows",
    "solve_with_gradients",
]
