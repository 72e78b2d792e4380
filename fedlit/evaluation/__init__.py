"""Which model is scored on which data, and the history of the scores.

Nothing here changes a model.
"""
