"""Products of matrices that are sharded over many devices."""
