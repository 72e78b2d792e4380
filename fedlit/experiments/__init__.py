"""Many runs in one command: sweeps over settings, comparisons over seeds, and the runner that both share."""
