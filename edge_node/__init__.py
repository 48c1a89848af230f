"""The edge node: the daemon a site runs beside its data."""
