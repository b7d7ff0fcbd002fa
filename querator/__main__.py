"""`python -m querator`: the same as the command `querator`."""

from querator.cli import main

if __name__ == "__main__":
    main()
