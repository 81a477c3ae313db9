"""The ledger: its promises, its rules, and the checks that every store is held to."""
