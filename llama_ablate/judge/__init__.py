"""The judge: candidates judged one by one against the best so far, under one error budget."""
