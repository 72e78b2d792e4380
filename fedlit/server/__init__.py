"""What turns trained clients into a new server model: samplers, weightings, aggregation, optimisers, callbacks.

Nothing here knows an engine or an algorithm.
"""
