"""Run an unchanged Flower ClientApp: its messages, replies and state."""
