"""Generated code of protocol version 1 (``make proto``)."""
