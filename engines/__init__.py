"""Engines as data: recipes, plans, builds, artefacts, and the simulator that stands in for them."""
