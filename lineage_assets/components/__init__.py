"""The component types that a defs.yaml names. One module each."""

from lineage_assets.components.event_table import EventTable as EventTable
from lineage_assets.components.marts import DbtMarts as DbtMarts
from lineage_assets.components.topic import Topic as Topic
from lineage_assets.components.window_table import WindowTable as WindowTable
