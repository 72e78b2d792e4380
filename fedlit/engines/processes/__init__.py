"""Several processes for one run: `strategy.py` starts them, `rendezvous.py` lets them meet, `monitor.py` watches them.

Nothing here knows training. `experiments/fork_server.py` starts other runs, `flower/programs.py` Flower's programs.
"""
