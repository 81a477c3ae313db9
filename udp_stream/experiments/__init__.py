"""The papers' figures and tables, computed with the project's own mechanisms: arrays in, tables and findings out.

The output is not private: it has true means and errors of the input. An experiment has `jobs` and `conclude` (tables,
figures, findings). The papers' claims and the words for findings are in `claims.toml`.
"""
