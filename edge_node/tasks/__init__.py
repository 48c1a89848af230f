"""What runs of a job's task: model, loss and the rest, in the trainer and at submission."""
