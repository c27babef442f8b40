"""The rules of the product: pure values and functions. No clock, no I/O, standard library only."""
