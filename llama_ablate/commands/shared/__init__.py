"""Code shared by commands: options, answers, notes, tables of forecasts and of progress."""
