"""Secure aggregation protocol SA-1: state machines without I/O (see docs/protocol.md)."""
