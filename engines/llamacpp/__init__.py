"""llama.cpp: its recipe, its plan, and the programs that build and serve its models."""
