"""What went wrong with a call of AWS, in one word and one sentence. Nothing here imports boto3 before it is needed: it takes most of a
second and 30 MiB, and most installations never use it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

THROTTLES = frozenset({"Throttling", "ThrottlingException", "RequestLimitExceeded", "SlowDown", "TooManyRequestsException", "503",
                       "ServiceUnavailable", "RequestThrottled", "ProvisionedThroughputExceededException"})
DENIALS = frozenset({"AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "403", "Forbidden", "AllAccessDisabled",
                     "KMS.AccessDeniedException"})
BAD_CREDENTIALS = frozenset({"InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "ExpiredTokenException", "AuthFailure",
                             "InvalidClientTokenId", "InvalidToken", "RequestExpired", "InvalidIdentityToken"})
WRONG_REGION = frozenset({"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "301",
                          "TemporaryRedirect", "IncorrectEndpoint"})
MISSING = frozenset({"NoSuchBucket", "NoSuchKey", "404", "NotFound"})


@dataclass(frozen=True)
class Trouble:
    """Why a call failed: `kind` is `no_credentials`, `denied`, `wrong_region`, `throttled`, `unreachable`, `missing` or `other`."""

    kind: str
    says: str

    def __str__(self) -> str:
        return self.says


class AwsError(OSError):
    """A call of AWS that failed. `trouble` says why and what to do."""

    def __init__(self, trouble: Trouble) -> None:
        super().__init__(trouble.says)
        self.trouble = trouble


def trouble_of(error: BaseException, what: str) -> Trouble:
    """The trouble that an exception of boto3 stands for. `what` names the call and its object."""
    from botocore import exceptions as known

    if isinstance(error, AwsError):
        return error.trouble
    if isinstance(error, known.ClientError):
        return _refused(error, what)
    if isinstance(error, (known.NoCredentialsError, known.PartialCredentialsError, known.CredentialRetrievalError,
                          known.NoAuthTokenError, known.TokenRetrievalError)):
        return Trouble("no_credentials", f"{what}: no AWS credentials ({error}); give the ServiceAccount a role by IRSA or Pod Identity")
    if isinstance(error, (known.NoRegionError, known.InvalidRegionError)):
        return Trouble("wrong_region", f"{what}: no usable region ({error}); set it in the configuration or by AWS_REGION")
    if isinstance(error, (known.HTTPClientError, known.ConnectionError, OSError)):
        return Trouble("unreachable", f"{what}: no answer ({error})")
    return Trouble("other", f"{what}: {type(error).__name__}: {error}")


def _refused(error: Any, what: str) -> Trouble:
    said = error.response.get("Error") or {}
    code, text = str(said.get("Code") or ""), str(said.get("Message") or "")[:300]
    status = (error.response.get("ResponseMetadata") or {}).get("HTTPStatusCode")
    told = f"{what}: {code}: {text}" if text else f"{what}: {code}"
    if code in THROTTLES or status in {429, 503}:
        return Trouble("throttled", f"{told}; it is asked again later")
    if code in BAD_CREDENTIALS:
        return Trouble("no_credentials", f"{told}; check the role of the ServiceAccount and the clock")
    if code in WRONG_REGION or status == 301:
        return Trouble("wrong_region", f"{told}; set the region of the bucket in archive.s3.region")
    if code in DENIALS or status == 403:
        return Trouble("denied", f"{told}; the role lacks the right")
    if code in MISSING or status == 404:
        return Trouble("missing", f"{told}; check the name")
    return Trouble("unreachable" if status is not None and status >= 500 else "other", told)
