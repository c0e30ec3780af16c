"""Standard tables, figures and the HTML page: functions over stored results, no torch."""
