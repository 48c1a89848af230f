"""The privacy core: values in, values out; no I/O, clock or randomness of its own."""
