"""What `fit` and every command that runs or checks one read the command line with."""
