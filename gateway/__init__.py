"""The gateway and its control plane: the only place where the other parts meet."""
