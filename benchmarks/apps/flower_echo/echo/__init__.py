"""A Flower app that does no training: what is left is the engine's own time per round."""
