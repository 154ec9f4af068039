"""The queries that the rest may make: plain functions of a Database that give back frozen values."""
