"""The papers' figures and tables, computed with the project's own mechanisms: arrays in, tables and verdicts out.

The output is not private: it has true means and errors of the input. There is a file for means, variances, worst cases
and queries. Each experiment has `jobs` (small pieces of work, so that progress can be shown) and `conclude` (tables,
figures, verdicts).
"""
