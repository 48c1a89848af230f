"""Attacks on what leaves a site, and the lint for models made to leak."""
