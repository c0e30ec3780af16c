"""Judge: sequential tests of candidates against the best so far, under one error budget."""
