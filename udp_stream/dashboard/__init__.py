"""The dashboard: released records by slot, over HTTP. It reads records alone: no ledger, no key, no
ping."""
