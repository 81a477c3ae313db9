"""The ledger, pure: its promises, its rules, filters, rolling windows, and the marks of its past."""
