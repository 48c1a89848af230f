"""The model versions that this site holds: followed by broadcasts, kept on disk, repaired."""
