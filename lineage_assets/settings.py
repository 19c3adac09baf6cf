"""Where everything is: settings from LINEAGE_… variables and a file, and the addresses that `lineage up` wrote.

Belongs here: the `Settings` model, the state file of the embedded stack's addresses, paths below LINEAGE_HOME and in the lake.
Does not belong here: anything that talks to a service.
"""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from lineage_assets.errors import ContractError, NotRunning
from lineage_assets.lineage.commits import Lake

REMEDY = "correct the LINEAGE_… variable or lineage.toml in LINEAGE_HOME"

Port = Annotated[int, Field(ge=0, le=65535)]


class Settings(BaseSettings):
    """All that a user can set. A variable beats `$LINEAGE_HOME/lineage.toml`, which beats the defaults.

    A part whose address is given here is yours: `lineage up` does not start it.
    """

    model_config = SettingsConfigDict(env_prefix="LINEAGE_", extra="forbid", hide_input_in_errors=True)

    home: Path = Path(".lineage")
    env: str = Field("dev", pattern=r"^[a-z0-9][a-z0-9_-]{0,30}$")
    lake: str = Field("", description="Root of the Delta tables: a path or an s3:// URL. Default: $LINEAGE_HOME/lake.")
    storage_options: dict[str, SecretStr] = Field(
        {}, description="Options of the lake's object store, as deltalake names them."
    )

    kafka_alias: str = Field("local", pattern=r"^[A-Za-z0-9_-]+$", description="The cluster's name in asset keys.")
    kafka_bootstrap: str = Field("", description="host:port of your brokers. Empty: the embedded broker.")
    kafka_config: dict[str, SecretStr] = Field({}, description="More client settings, such as sasl.password.")
    spark_kafka_config: dict[str, SecretStr] = Field(
        {}, description="The same for Spark's Java client, such as sasl.jaas.config."
    )
    registry_url: str = Field("", description="Confluent-compatible registry. Empty: the embedded one.")
    registry_config: dict[str, SecretStr] = Field(
        {}, description="More registry client settings, such as basic.auth.user.info."
    )
    spark_remote: SecretStr = Field(
        SecretStr(""), description="sc://… address. Empty: the embedded Spark Connect server."
    )

    kafka_port: Port = Field(0, description="0: a free port is chosen at the first `up` and kept.")
    kafka_controller_port: Port = 0
    registry_port: Port = 0
    spark_port: Port = 0
    ui_port: Port = 3000
    spark_memory: str = Field("1536m", pattern=r"^[0-9]+[mg]$", description="Heap of the embedded Spark server.")

    stream_memory_mb: int = Field(
        2048, ge=256, description="Memory at which a stream's Python worker starts again with smaller batches, in MB."
    )

    slices_since: str = Field("2026-01-01", description="First slice of topics that name no `start` of their own.")

    vacuum_after: str = Field("7d", description="`lineage maintain` removes files that no version of so long holds.")
    log_after: str = Field("1d", description="It removes log files so old, once the ledger has their records.")
    events_after: str = Field(
        "30d", description="It removes Dagster's events so old, all but the newest of each place."
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        home = Path(os.environ.get("LINEAGE_HOME", ".lineage"))
        return (init_settings, env_settings, TomlConfigSettingsSource(settings_cls, home / "lineage.toml"))

    def model_post_init(self, _: Any) -> None:
        self.home = self.home.expanduser().absolute()
        self.lake = (self.lake or str(self.home / "lake")).rstrip("/")
        if not self.spark_remote.get_secret_value():
            self.spark_remote = SecretStr(os.environ.get("SPARK_REMOTE", ""))

    @property
    def stack_dir(self) -> Path:
        """Data, logs, pid files and tokens of the embedded stack."""
        return self.home / "stack"

    @property
    def dagster_home(self) -> Path:
        return self.home / "dagster"

    def table_path(self, asset: str) -> str:
        """Where the Delta table of an asset key such as `raw/clicks` lives."""
        return f"{self.lake}/{self.env}/{asset}"

    @property
    def lake_env(self) -> Lake:
        """The lake of this environment."""
        options = {name: value.get_secret_value() for name, value in self.storage_options.items()}
        return Lake(f"{self.lake}/{self.env}", options)

    @property
    def kafka(self) -> str:
        """The brokers' bootstrap address. Raises NotRunning if it is ours and was never started."""
        return self.kafka_bootstrap or self._address("kafka")

    @property
    def registry(self) -> str:
        """The registry's Confluent-compatible URL. Raises NotRunning if it is ours and was never started."""
        return self.registry_url or self._address("registry")

    @property
    def spark(self) -> str:
        """The sc:// address, token included: a secret. Raises NotRunning if it is ours and was never started."""
        return self.spark_remote.get_secret_value() or self._address("spark")

    def _address(self, part: str) -> str:
        path = addresses_file(self)
        if path.exists() and (address := json.loads(path.read_text()).get(part)):
            return str(address)
        variable = {"kafka": "KAFKA_BOOTSTRAP", "registry": "REGISTRY_URL", "spark": "SPARK_REMOTE"}[part]
        raise NotRunning(
            f"{part} has no address: the embedded one was not started under {self.home}",
            remedy=f"run `lineage up`, or set LINEAGE_{variable} to your own",
        )


def addresses_file(settings: Settings) -> Path:
    """JSON `{"kafka": "127.0.0.1:…", "registry": "http://…", "spark": "sc://…"}`, mode 0600 (it holds Spark's token)."""
    return settings.stack_dir / "addresses.json"


@cache
def settings() -> Settings:
    """The settings of this process, read once. Raises ContractError that names what is wrong, never its value."""
    try:
        return Settings()
    except ValidationError as error:
        wrong = [f"{'.'.join(map(str, one['loc'])) or 'settings'}: {one['msg']}" for one in error.errors()]
        raise ContractError("; ".join(wrong), remedy=REMEDY) from None
    except SettingsError as error:
        raise ContractError(str(error), remedy=REMEDY) from None
