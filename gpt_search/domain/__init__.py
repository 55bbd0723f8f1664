"""The vocabulary of gpt_search: knobs, routes, outcomes, history. Pure: standard library and numpy."""
