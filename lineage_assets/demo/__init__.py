"""The demo's web shop: invented visitors, their clicks and the truth about them.

Belongs here: what makes demo input. Does not belong here: the assets that read it (lineage_assets/defs/).
"""
