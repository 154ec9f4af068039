"""The admin web console."""
