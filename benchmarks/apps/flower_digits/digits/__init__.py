"""FedAvg of ``apps/digits`` on Flower; the benchmark puts the task beside these files."""
