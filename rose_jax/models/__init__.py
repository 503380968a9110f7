"""Networks. The only room that imports flax modules."""
