"""A sweep over hyper-parameters: its file, its search, its picture."""
