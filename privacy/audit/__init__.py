"""Estimators that test a privacy claim from outside: what was released against what was claimed."""
