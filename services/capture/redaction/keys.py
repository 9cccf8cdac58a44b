"""Judges names and the values under them: does this key ask for secrecy, and could this value be a secret at all.

One judgement serves text (`password = x`), argv (`--token x`), headers and JSON keys, so that all forms of one secret
agree.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

from services.capture.redaction.checks import entropy
from services.capture.words import words

Judge = Literal["whole", "flag", "lenient", "strict"]


class Name(NamedTuple):
    """What a key name says: the kind of secret, and whether the name alone is proof (`strong`)."""

    kind: str
    strong: bool


# Ends of a name, longest first. Only the end counts: `password_policy`, `token_url`, `secret_name` hold no secret.
_ENDS: dict[tuple[str, ...], Name] = {
    tuple(words.split()): Name(kind, strong)
    for kind, strong, names in (
        ("password", True, "password|passwd|passphrase|passcode|pwd|passw|pass word|pass phrase|mnemonic|seed phrase"),
        ("secret", True, "secret|credential|credentials|client secret|webhook secret"),
        (
            "api_key",
            True,
            "apikey|api key|access key|secret key|auth key|account key|shared key|encryption key|signing key"
            "|master key|service key|service role key|deploy key|hmac key|subscription key|function key|admin key"
            "|client key"
            "|license key|app key|write key|secretkey|accesskey|accountkey",
        ),
        ("private_key", True, "private key|privatekey|ssh key|client key data"),
        (
            "token",
            True,
            "access token|auth token|refresh token|session token|id token|api token|bot token|bearer token|bearer"
            "|personal access token|security token|csrf token|xsrf token|deploy token|authtoken|accesstoken"
            "|oauth token",
        ),
        ("token", False, "token|jwt|auth|pass"),
        ("authorization", True, "authorization"),
        ("cookie", True, "cookie|cookies"),
        ("password", True, "密码|口令|pw"),
        ("api_key", True, "密钥"),
        ("token", True, "令牌"),
    )
    for words in names.split("|")
}
_SINGLE = frozenset(words[0] for words in _ENDS if len(words) == 1)
_LONGEST = max(map(len, _ENDS))
# Words that may follow the secret word without changing what the value is: API_KEY_PROD, TOKEN_2, password_base64.
_TAILS = frozenset(
    words(
        "value val base64 b64 raw text plain plaintext string str prod production staging stage dev "
        "development test live old new prev previous current backup primary secondary default main "
        "override env hash encoded base"
    )
)
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+|[^\x00-\x7f]+")
_JOINED = re.compile(
    r"([a-z]{2,})(password|passwd|passphrase|pwd|secret|token|apikey|credentials?)\Z"
    r"|(user|db|require|admin|root|smtp|mail|redis|my|key|bind|login|server|proxy|sudo|become"
    r"|master|jdbc|ftp|ssh|http|auth|pg|sql)(pass)\Z"
)
_MAX_NAME = 120


@lru_cache(maxsize=8192)
def name_of(key: str) -> Name | None:
    """The kind of secret a key name announces, or None. `X-Api-Key`, `dbPassword`, `client_secret_2` → a Name."""
    if len(key) > _MAX_NAME:
        key = key[-_MAX_NAME:]
    if "‹redacted:" in key:
        return None
    words = [w.lower() for w in _WORD.findall(key)]
    while words and (words[-1] in _TAILS or words[-1].isdecimal()):
        words.pop()
    if words:
        # Written together: dbpassword, requirepass, clientsecret.
        joined = _JOINED.match(words[-1])
        if joined is not None and words[-1] not in _SINGLE:
            words[-1:] = [part for part in joined.groups() if part]
    for size in range(min(_LONGEST, len(words)), 0, -1):
        found = _ENDS.get(tuple(words[-size:]))
        if found is not None:
            if words[-1] == "pass" and len(words) > 1:
                return Name("password", True)
            return found
    return None


# A value that is no secret whatever its name: empty words, references, templates, masks, types, calls.
_NOTHING = re.compile(
    r"""(?ix) (?: true|false|yes|no|on|off|null|nil|none|undefined|void|empty|unset|required|optional|default|hidden
    | masked|redacted|removed|n/a|tbd|todo|secret|password|passwd|token|api[_-]?key|key|value|string|str|bytes|int
    | integer|number|bool(?:ean)?|any|object|array|text|char|varchar|bearer|basic|digest|negotiate|prompt
    | change[_-]?(?:me|it)|stdin|env|file|plain|wrong|invalid|incorrect|missing|expired|denied|failed|ok|error
    | valid|mismatch|not_set|self|this|cls|me
    | \[?redacted\]? | (.)\1* | [x*.•_\-]+ | \#.*
    | (?:basic|bearer|token)\s+[$<{%"'].* | (?:none|null|true|false|undefined)\W.* | <.*> | \$.* | %[a-z_]+%?
    | \{\{.*\}?\}? | \{[a-z_.0-9]*\}? | @[a-z_]+@ | \[.*\] | \(.*\)
    | your[\-_ .].* | my[\-_](?:secret|password|token|key)
    | (?:process\.env|os\.environ|os\.getenv|env|self|this|cls|config|cfg|settings|args|opts|options|secrets|vars?
      |params?|request|req|data|ctx|process|local|module|each)\.[a-z_.$\[\]"']*
    | (?:str|int|bytes|Optional|Union|list|dict|Callable|Secret|SecretStr|String|Option|Vec)\b[\[<(|].*
    | !(?:ref|sub|getatt|vault|secret|env_var)\b.* | (?:enc|vault|ref|op|ssm|arn|file|env|secretref|keyvault)(?::|\().*
    ) \Z""",
    re.DOTALL,
)
_STOP = frozenset(
    words(
        "flag option options argument arguments parameter value to is and or for the in if with must "
        "from via when file stdin that this which will should can not you your a an as on be by are "
        "was were it its of at has have does into via using between"
    )
)
_CODE_WORD = re.compile(r"[A-Za-z_$][A-Za-z_$]*(?:\.[A-Za-z_$]+)*[?!]?\Z")
_CALL = re.compile(r"[A-Za-z_$][\w.$]*[(\[].*", re.DOTALL)
_CAMEL = re.compile(r"[A-Z][a-z]+(?:[A-Z][a-z]*)*\Z")
_PATH = re.compile(r"(?:\.{0,2}/|~/|[A-Za-z]:\\)[\w./\\~\-]*\Z|[a-z][a-z0-9+.\-]*://")
_TOKENISH = re.compile(r"[A-Za-z0-9_\-./+=~%:|]{8,}\Z")
_DIGIT = re.compile(r"[0-9]")
_LETTER = re.compile(r"[A-Za-z]")
_SYMBOL = re.compile(r"[!@#$%^*+=~?]")


def plausible(name: Name, key: str, value: str, judge: Judge) -> bool:
    """Whether `value` under a key named `name` is worth hiding.

    `whole`: the value is a JSON leaf. `flag`: what follows `--name`. `lenient`: another form that says "value"
    (quotes, .env line). `strict`: could be code or prose, so it must look random.
    """
    if len(value) < 3 or "\x00" in value or _NOTHING.match(value) or value.lower() == key.lower():
        return False
    if not name.strong and (judge != "flag" or key.lower().endswith("auth")):
        return (
            _TOKENISH.match(value) is not None
            and _DIGIT.search(value) is not None
            and _LETTER.search(value) is not None
            and entropy(value.encode("utf-8", "replace")) >= 2.5
        )
    if judge == "whole":
        return True
    if name.kind == "cookie" and "=" not in value:
        return False
    if any(c.isspace() for c in value):
        return judge != "strict" and _DIGIT.search(value) is not None and len(value) >= 8
    if _PATH.match(value) and name.kind != "cookie":
        return False
    if judge == "flag" and value.startswith("-"):
        return False
    if judge != "strict":
        # What ends in a bracket that it did not open is the end of a call.
        rest = value.rstrip(")]}:;,")
        if _CALL.match(value) or (rest != value and (_CODE_WORD.match(rest) or rest.lower() == key.lower())):
            return False
        return value not in _STOP and not (_CAMEL.match(value) and not key.isupper())
    if _CODE_WORD.match(value):
        return len(value) >= 20 and entropy(value.encode()) >= 3.8 and "_" not in value and "." not in value
    return _DIGIT.search(value) is not None or _SYMBOL.search(value) is not None


def argv_contexts(items: Sequence[object]) -> dict[int, str]:
    """Which elements of an argument list stand under a secret flag: `["--token", "x"]` → {1: "--token"}; the
    dashes stay."""
    found: dict[int, str] = {}
    for i, item in enumerate(items[:-1]):
        if isinstance(item, str) and item.startswith("-") and len(item) <= _MAX_NAME and "=" not in item:
            nxt = items[i + 1]
            if isinstance(nxt, str) and not nxt.startswith("-") and name_of(item.lstrip("-")) is not None:
                found[i + 1] = item
    return found
