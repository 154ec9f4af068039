"""Ways of running replicas behind one protocol."""
