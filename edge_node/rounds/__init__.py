"""Make one job's updates: a file for each kind of work, all behind ``contract.LocalRound``."""
