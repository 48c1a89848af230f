"""Differential privacy arithmetic: events, accountant, calibration and ledger rules."""
