"""Open the data sets that a site's configuration names: its data plugs.

The job only says which declared data set it wants and what its columns must be; where the rows lie
and how they are read is the site's business alone. A plug (one file a family) streams batches of
columns; ``table`` gathers them into one float32 table, in memory or, where that is too large, in a
file of the site's own; ``dataset`` takes rows from it; ``check`` holds it against a job's schema.
"""

from edge_node.data.dataset import Dataset, from_table
from edge_node.data.groups import RowGroups

__all__ = ["Dataset", "RowGroups", "from_table"]
