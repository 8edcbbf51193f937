"""Replaying dead letters: chosen, judged by the plan of now, written, settled in the ledger."""
