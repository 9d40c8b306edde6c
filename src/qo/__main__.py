"""`python -m qo` is `qo`."""

from qo.cli import main

if __name__ == "__main__":
    main(prog_name="qo")
