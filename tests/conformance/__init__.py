"""Every preference and every closeness through every estimator, bound, gradient, dtype and option."""
