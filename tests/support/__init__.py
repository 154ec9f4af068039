"""What the tests share: servers on free ports, fakes, waiting."""
