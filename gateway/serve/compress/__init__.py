"""The forms a prompt can take on its way to a model."""
