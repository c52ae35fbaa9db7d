"""`python -m dpjax`: the command line."""

from __future__ import annotations

from dpjax.cli import main

if __name__ == "__main__":
    main()
