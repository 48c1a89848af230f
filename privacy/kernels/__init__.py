"""The loops that an update spends its time in, each beside numpy that gives the same bits."""
