"""The aggregator: cohorts, folding, unmasking, server optimiser and the operator API."""
