"""Commit records on S3: logs read file by file, the ledger, and its backup, against moto's server."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, write_deltalake

from lineage_assets.lineage import record as records
from lineage_assets.lineage.commits import Lake
from lineage_assets.lineage.ledger import commit_records as ledger
from lineage_assets.lineage.ledger.backup import Copied, back_up, put_back
from tests.unit.written import record

RAW = "raw/clicks"


@pytest.fixture(scope="module")
def lake() -> Iterator[Lake]:
    import boto3

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # A process of its own: deltalake lists a folder without letting go of this process's interpreter.
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], stderr=subprocess.DEVNULL
    )
    options = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }
    until = time.monotonic() + 60
    while socket.socket().connect_ex(("127.0.0.1", port)):
        assert server.poll() is None and time.monotonic() < until, "moto's server does not come up"
        time.sleep(0.1)
    boto3.client(
        "s3",
        endpoint_url=options["AWS_ENDPOINT_URL"],
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
    ).create_bucket(Bucket="ledger")
    yield Lake("s3://ledger/dev", options)
    server.terminate()
    server.wait(20)


def test_records_go_from_logs_to_the_ledger_and_its_backup_and_back(lake: Lake, tmp_path: Path) -> None:
    for number in range(5):
        text = records.to_json(record(ranges={0: (number, number + 1)}, seconds=number))
        write_deltalake(
            lake.path(RAW),
            pa.table({"a": [number]}),
            mode="append",
            storage_options=dict(lake.storage_options),
            commit_properties=CommitProperties(custom_metadata={"userMetadata": text}),
        )
    whole, piece = ledger.read_log(lake, RAW), ledger.read_log(lake, RAW, 1, at_most=2)
    assert whole is not None and piece is not None
    assert [one.version for one in piece.entries] == [1, 2] and list(piece.entries) == list(whole.entries[1:3])
    assert ledger.add_entries(lake, {RAW: whole.entries}) == 5 and ledger.add_entries(lake, {RAW: whole.entries}) == 0
    assert ledger.spans(lake, RAW) == {whole.table_id: [(0, 5)]}
    assert ledger.entries(lake, RAW, whole.table_id, first=3) == list(whole.entries[3:])
    assert ledger.find(lake, RAW, 2).source == "log"

    assert back_up(lake, "s3://ledger/backup") == [Copied(ledger.COMMITS, 5)]
    assert back_up(lake, str(tmp_path)) == [Copied(ledger.COMMITS, 5)]
    empty = Lake("s3://ledger/other", lake.storage_options)
    assert put_back(empty, "s3://ledger/backup") == [Copied(ledger.COMMITS, 5)]
    assert ledger.entries(empty, RAW) == list(whole.entries)
