"""The papers' figures and tables, computed with the project's own mechanisms: arrays in, tables and findings out.

The output is not private: it has true means and errors of the input. There is a file for means, variances, worst cases,
queries and trees. Each experiment has `jobs` (small pieces of work, so that progress can be shown) and `conclude`
(tables, figures, findings). What the papers claim, and the words for a finding, are data: `claims.toml`.
"""
