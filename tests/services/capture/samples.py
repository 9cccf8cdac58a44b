"""Made-up secrets for tests, put together here so that no file holds one in a provider's form."""

from __future__ import annotations

import base64

AWS_ID = "AKIA" + "IOSFODNN7EXAMPLE"
SLACK = "xoxb-" + "000000000000-EXAMPLEexampleEXAMPLE"
GITHUB = "ghp_" + "EXAMPLEexampleEXAMPLEexampleEXAMPLE0"
ANTHROPIC = "sk-ant-" + "api03-EXAMPLEexampleEXAMPLEexample-AA"
BEARER = "EXAMPLE0exampleEXAMPLE1example"
JWT = ".".join(
    base64.urlsafe_b64encode(part).decode().rstrip("=")
    for part in (b'{"alg":"HS256","typ":"JWT"}', b'{"sub":"example","iat":1700000000}', b"signature-of-the-example")
)
PEM = "\n".join(
    [
        "-----BEGIN RSA PRIVATE" + " KEY-----",
        *(base64.b64encode(bytes([65 + n] * 24 + list(range(24)))).decode() for n in range(6)),
        "RVhBTVBMRQ==",
        "-----END RSA PRIVATE" + " KEY-----",
    ]
)
