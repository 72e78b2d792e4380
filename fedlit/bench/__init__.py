"""`fedlit bench`: client steps per second of each engine, beside what a researcher writes by hand."""
