"""Networks. The only room with flax modules."""
