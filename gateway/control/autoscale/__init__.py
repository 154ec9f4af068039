"""How many replicas each pool should have, and making it so."""
