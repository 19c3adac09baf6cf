"""The ledger: Delta tables with what no commit can hold for good. Cuts of topics, topics that follow
earlier ones, and every commit's record.

Belongs here: one module for each table, and `tables.py` with what they share: how a table is made and appended to.
Does not belong here: how a cut is found (kafka/cuts.py), what a Delta log says (lineage/commits.py).
"""

from lineage_assets.lineage.ledger import accepted_topics, commit_records, topic_cuts
from lineage_assets.lineage.ledger.accepted_topics import accept as accept
from lineage_assets.lineage.ledger.accepted_topics import accepted as accepted
from lineage_assets.lineage.ledger.tables import LedgerTable as LedgerTable
from lineage_assets.lineage.ledger.topic_cuts import CUTS as CUTS
from lineage_assets.lineage.ledger.topic_cuts import TopicRef as TopicRef
from lineage_assets.lineage.ledger.topic_cuts import add_cuts as add_cuts
from lineage_assets.lineage.ledger.topic_cuts import cuts as cuts

TABLES = (topic_cuts.TABLE, accepted_topics.TABLE, commit_records.TABLE)
"""All tables of the ledger: what a backup copies, for none of it can be made again."""
