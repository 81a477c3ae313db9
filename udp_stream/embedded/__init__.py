"""The whole pipeline in one process, and one statistic at hand without a ledger."""
