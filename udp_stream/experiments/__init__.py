"""The papers' figures and tables, computed with the project's own mechanisms: arrays in, tables and verdicts out.

The output is not private: it has true means and errors of the input. One file per experiment, each with its
`jobs` (small pieces of work, so that progress can be shown) and its `conclude` (tables, figures, verdicts).
"""
