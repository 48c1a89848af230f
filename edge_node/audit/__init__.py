"""Audits that a site, or anybody with the wheel, runs against this very installation."""
