"""The wire contract and its conversion to domain values."""
