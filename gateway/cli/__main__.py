"""`python -m gateway.cli`: the same as the `turnout` command, without needing it on the PATH."""

from gateway.cli import main

if __name__ == "__main__":
    main(prog_name="turnout")
