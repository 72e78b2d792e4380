"""From trained clients to a new server model: samplers, weightings, aggregation, optimisers, callbacks.

Nothing here knows an engine or an algorithm.
"""
