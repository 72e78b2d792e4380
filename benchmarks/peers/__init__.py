"""Programs that other interpreters run: the work of a workload in another framework. They import nothing of fedlit."""
