"""The leakage audit at a site: attack confined, show what was got, remember the verdict."""
