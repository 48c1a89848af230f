"""The operator's command line; it speaks the operator API only."""
