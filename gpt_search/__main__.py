"""`python -m gpt_search` is `gpt-search`."""

from gpt_search.cli.main import main

if __name__ == "__main__":
    main()
