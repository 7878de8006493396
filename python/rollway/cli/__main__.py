"""`python -m rollway.cli`: the `rollway` command where no script is installed."""

from rollway.cli import main

if __name__ == "__main__":
    main()
