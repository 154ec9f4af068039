"""The terms of a plan's cost, one small pure function a file."""
