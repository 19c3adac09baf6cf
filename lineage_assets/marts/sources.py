"""A dbt source's rows: a Delta table at a pinned version, without held slices, its slices merged where that is declared.

Belongs here: from a pin to Arrow. Does not belong here: choosing the pin, anything of dbt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lineage_assets.errors import ContractError
from lineage_assets.lineage.commits import Lake
from lineage_assets.marts.merge import Merge, merge_rows
from lineage_assets.marts.pins import Pin, open_pinned

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.dataset as ds

SLICE = "_slice"


def read(lake: Lake, asset: str, at: Pin, merge: Merge | None = None) -> ds.Dataset | pa.Table:
    """The rows of a table at a pin: a dataset, of which DuckDB reads what a query needs, or a merged table.

    Raises FatalError when the table was made again since, ContractError when a merged column is not there.
    """
    import pyarrow.compute as pc

    dataset = open_pinned(lake, asset, at).to_pyarrow_dataset()
    if at.held:
        dataset = dataset.filter(~pc.field(SLICE).isin(list(at.held)))
    if merge is None:
        return dataset
    absent = [name for name in merge.columns if name not in dataset.schema.names]
    if absent:
        raise ContractError(
            f"{asset} at version {at.version} has no column {', '.join(absent)}, which meta.merge of its source names",
            remedy=f"use its columns: {', '.join(dataset.schema.names)}",
        )
    return merge_rows(dataset.to_table(columns=merge.columns), merge)
