"""Several processes for one run: how they start, meet, share rows and end together. Nothing here knows training."""
