"""The ledger on S3: the real object-store client against moto's server, which cannot be AWS itself here."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from moto.server import ThreadedMotoServer

from lineage_assets.lineage import ledger
from lineage_assets.lineage.commits import Lake, commits, open_table
from lineage_assets.lineage.ledger import TopicRef
from lineage_assets.lineage.slices import Cut
from lineage_assets.settings import Settings

NOON = datetime(2026, 8, 1, 12, tzinfo=UTC)
CLICKS = TopicRef("local", "clicks", "id-1")


@pytest.fixture(scope="module")
def bucket():
    import boto3

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    client = boto3.client(
        "s3", endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id="test", aws_secret_access_key="test"
    )
    client.create_bucket(Bucket="lake")
    yield {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }
    server.stop()


def test_the_settings_name_a_lake_on_s3_without_showing_its_secrets(bucket):
    settings = Settings(lake="s3://lake/", storage_options=bucket)
    assert settings.lake_env == Lake("s3://lake/dev", bucket)
    assert "AWS_SECRET_ACCESS_KEY" in repr(settings)
    assert "'test'" not in repr(settings)


def test_a_table_that_does_not_exist_has_no_commits(bucket):
    lake = Lake("s3://lake/none", bucket)
    assert open_table(lake, "raw/clicks") is None
    assert commits(lake, "raw/clicks") == []


def test_the_first_insert_of_a_cut_wins_on_s3_too(bucket):
    lake = Lake("s3://lake/dev", bucket)
    cuts = [Cut(NOON, {0: 3}), Cut(NOON + timedelta(hours=1), {0: 5})]
    ledger.add_cuts(lake, CLICKS, cuts[:1], "arrival")
    with ThreadPoolExecutor(4) as pool:
        wanted = [[Cut(NOON, {0: 99}), cuts[1]]] * 4
        standing = list(pool.map(lambda one: ledger.add_cuts(lake, CLICKS, one, "arrival"), wanted))
    assert standing == [cuts] * 4
    assert ledger.cuts(lake, CLICKS) == cuts
