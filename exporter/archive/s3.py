"""S3 as the archive sees it: whole objects by key, every request bounded, every failure as an `AwsError` that says why."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from exporter.aws import AwsError, trouble_of
from exporter.config.archive import S3

T = TypeVar("T")
CONNECT_SECONDS = 5.0


class S3Store:
    """One bucket. Credentials are those of the environment: IRSA, Pod Identity, a profile. Safe to use from several threads."""

    def __init__(self, config: S3) -> None:
        self._config = config
        self._prefix = config.prefix.strip("/") + "/" if config.prefix.strip("/") else ""
        self._client: Any = None

    def put(self, name: str, data: bytes) -> None:
        """Write an object; the same name with the same bytes may be written again. Raises AwsError."""
        more: dict[str, str] = {}
        if self._config.encryption != "bucket":
            more["ServerSideEncryption"] = self._config.encryption
        if self._config.kms_key is not None:
            more["SSEKMSKeyId"] = self._config.kms_key
        self._call("PutObject", lambda s3: s3.put_object(Bucket=self._config.bucket, Key=self._prefix + name, Body=data,
                                                         ContentType="application/gzip", **more))

    def get(self, name: str) -> bytes:
        """The bytes of an object. Raises AwsError."""
        return self._call("GetObject", lambda s3: bytes(s3.get_object(Bucket=self._config.bucket, Key=self._prefix + name)["Body"].read()))

    def names(self, below: str, after: str = "") -> Iterator[str]:
        """The names of the objects below a folder, in order, from behind `after`. Raises AwsError."""
        token: str | None = None
        while True:
            page = self._call("ListObjectsV2", lambda s3, token=token: s3.list_objects_v2(
                Bucket=self._config.bucket, Prefix=self._prefix + below, **({"ContinuationToken": token} if token else {}),
                **({"StartAfter": self._prefix + after} if after and not token else {})))
            for one in page.get("Contents") or []:
                yield str(one["Key"]).removeprefix(self._prefix)
            token = page.get("NextContinuationToken")
            if not token:
                return

    def _call(self, name: str, call: Callable[..., T]) -> T:
        what = f"{name} in bucket {self._config.bucket}"
        try:
            if self._client is None:
                self._client = self._connected()
            return call(self._client)
        except Exception as error:  # noqa: BLE001 - boto3 raises of a dozen families, and classes made at run time
            raise AwsError(trouble_of(error, what)) from None

    def _connected(self) -> Any:
        import boto3
        from botocore.config import Config

        limits = Config(connect_timeout=min(CONNECT_SECONDS, self._config.timeout), read_timeout=self._config.timeout,
                        retries={"total_max_attempts": 2, "mode": "standard"}, user_agent_extra="efa-pulse")
        # A session of its own: the default one is shared and no two threads may make clients from it at the same time.
        return boto3.session.Session().client("s3", region_name=self._config.region, endpoint_url=self._config.endpoint, config=limits)
