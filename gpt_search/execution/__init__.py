"""Worker processes: start, ask, time out, kill; and the evaluator that drives them."""
