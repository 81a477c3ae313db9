"""The papers' figures and tables, computed with the project's own mechanisms: arrays in, tables and verdicts out.

What comes out is not private: true means and errors of whatever data went in. One file per experiment, each with its
`jobs` (small pieces of work, so that progress can be shown) and its `conclude` (tables, figures, verdicts).
"""
