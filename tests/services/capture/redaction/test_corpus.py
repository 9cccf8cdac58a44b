"""Recall and precision on realistic tool output that the patterns were not written from, and the shares below
which we do not fall."""

from __future__ import annotations

import base64
import random
import re
import string
from pathlib import Path

import pytest

from services.capture.redaction import Redactor
from tests.services.capture.samples import PEM

pytestmark = pytest.mark.unit

FILE = Path(__file__).with_name("corpus.txt")
_MARK = re.compile(r"⟦([a-z0-9_]+)(?::(\d+))?⟧|⟪([a-z0-9_]+)(?::(\d+))?⟫")
ALNUM = string.ascii_letters + string.digits


def luhn_card(r: random.Random) -> str:
    digits = [4] + [r.randrange(10) for _ in range(14)]
    total = sum(d if i % 2 else (d * 2 - 9 if d > 4 else d * 2) for i, d in enumerate(digits))
    return "".join(map(str, [*digits, -total % 10]))


def resident_id(r: random.Random) -> str:
    body = f"110105{r.randrange(1950, 2005)}{r.randrange(1, 13):02}{r.randrange(1, 29):02}{r.randrange(1000):03}"
    weights = (7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2)
    return body + "10X98765432"[sum(int(c) * w for c, w in zip(body, weights, strict=True)) % 11]


def make(what: str, size: int, r: random.Random) -> str:
    """One look-alike of a kind, from the random source alone."""

    def pick(alphabet: str, n: int) -> str:
        return "".join(r.choice(alphabet) for _ in range(n))

    def b64(n: int) -> str:
        return base64.b64encode(r.randbytes(n)).decode()[:n]

    def simple() -> str:
        word = r.choice(["Winter", "dragon", "Kaffee", "tr0ub4dor", "blue"])
        return word + str(r.randrange(100, 9999)) + r.choice("!#%_-")

    match what:
        case "hex":
            return pick("0123456789abcdef", size)
        case "b64":
            return b64(size)
        case "rawb64":
            return base64.b64encode(bytes(r.randrange(128, 256) for _ in range(size))).decode()
        case "b64url":
            return base64.urlsafe_b64encode(r.randbytes(size)).decode()[:size]
        case "uuid":
            return "-".join(pick("0123456789abcdef", n) for n in (8, 4, 4, 4, 12))
        case "pw":
            return pick(ALNUM + "!$%^*-_+.", 14) + "7a"
        case "pw_nq":
            return pick(ALNUM + "!%^*-_+.", 14) + "7a"
        case "simple":
            return simple()
        case "word":
            return r.choice(["letmein", "correcthorse", "opensesame", "hunter"]) + r.choice(["", "2", "99"])
        case "cookie":
            return f"session={pick(ALNUM, 32)}; theme=dark; HttpOnly"
        case "email":
            first, last, domain = (pick(string.ascii_lowercase, n) for n in (6, 5, 7))
            return f"{first}.{last}@{domain}.{r.choice(['com', 'org', 'de', 'cn'])}"
        case "gmail_sa":
            return f"deploy@{pick(string.ascii_lowercase, 8)}.iam.gserviceaccount.com"
        case "phone_cn":
            return f"13{pick(string.digits, 9)}"
        case "phone_us":
            return f"({r.randrange(201, 989)}) {r.randrange(201, 989)}-{pick(string.digits, 4)}"
        case "phone_intl":
            return f"+49 30 {pick('123456789', 4)} {pick('123456789', 4)}"
        case "phone_de":
            return f"+49 171 {pick('123456789', 7)}"
        case "iban":
            return "DE89370400440532013000"
        case "card":
            return luhn_card(r)
        case "cnid":
            return resident_id(r)
        case "aws_id":
            return "AKIA" + pick(string.ascii_uppercase + "234567", 16)
        case "asia":
            return "ASIA" + pick(string.ascii_uppercase + "234567", 16)
        case "github":
            return "gh" + r.choice("po") + "_" + pick(ALNUM, 36)
        case "gitlab":
            return "glpat" + "-" + pick(ALNUM, 20)
        case "npm":
            return "npm" + "_" + pick(ALNUM, 36)
        case "pypi":
            return "pypi-" + "AgEIcHlwaS5vcmc" + pick(ALNUM, 80)
        case "slack":
            return "xoxb" + f"-{pick(string.digits, 12)}-{pick(string.digits, 12)}-{pick(ALNUM, 24)}"
        case "slackhook":
            return f"T{pick(string.ascii_uppercase, 8)}/B{pick(string.ascii_uppercase, 8)}/{pick(ALNUM, 24)}"
        case "openai":
            return "sk-" + "proj-" + pick(ALNUM + "_-", 60)
        case "anthropic":
            return "sk-ant-" + "api03-" + pick(ALNUM + "_-", 80) + "AA"
        case "stripe":
            return "sk_" + "live_" + pick(ALNUM, 24)
        case "whsec":
            return "whsec" + "_" + pick(ALNUM, 32)
        case "vault":
            return "hvs" + "." + pick(ALNUM, 24)
        case "discord":
            return "M" + pick(ALNUM, 25) + "." + pick(ALNUM, 6) + "." + pick(ALNUM, 38)
        case "telegram":
            return pick("123456789", 10) + ":AA" + pick(ALNUM, 33)
        case "azure_key":
            return base64.b64encode(r.randbytes(64)).decode()
        case "jwt":
            parts = (b'{"alg":"RS256"}', b'{"sub":"%d","name":"x"}' % r.randrange(10**9), r.randbytes(64))
            return ".".join(base64.urlsafe_b64encode(p).decode().rstrip("=") for p in parts)
        case "pem":
            return PEM.replace("RSA", "OPENSSH")
        case "pemjson":
            return PEM.replace("RSA ", "").replace("\n", "\\n") + "\\n"
        case "crypt":
            return "$6$" + pick(ALNUM, 16) + "$" + pick(ALNUM + "./", 86)
        case "bcrypt":
            return "$2b$12$" + pick(ALNUM + "./", 53)
        case "b64creds":
            text = f"[default]\naws_access_key_id = AKIA{pick(string.ascii_uppercase, 16)}\n"
            text += f"aws_secret_access_key = {b64(40)}\n"
            raw = base64.b64encode(text.encode()).decode()
            return "\n".join(raw[i : i + 76] for i in range(0, len(raw), 76))
    raise AssertionError(what)


def documents(seed: int) -> list[tuple[str, str, list[tuple[int, int]]]]:
    """(title, text, spans of secrets) of each document."""
    r = random.Random(seed)
    found = []
    for part in FILE.read_text("utf-8").split("=== ")[1:]:
        title, _, body = part.partition("\n")
        text, spans, last = "", [], 0
        for m in _MARK.finditer(body):
            text += body[last : m.start()]
            value = make(m.group(1) or m.group(3), int(m.group(2) or m.group(4) or 0), r)
            if m.group(1):
                spans.append((len(text), len(text) + len(value)))
            text += value
            last = m.end()
        found.append((title, text + body[last:], spans))
    return found


def measure(redactor: Redactor, seed: int) -> tuple[int, int, int, int, list[str]]:
    """(secrets, of them hidden whole, findings, of them at a secret, what went wrong)."""
    secrets = hidden = findings = right = 0
    wrong: list[str] = []
    for title, text, spans in documents(seed):
        raw = text.encode()
        found = [(len(raw[: f.start].decode()), len(raw[: f.end].decode())) for f in redactor._scanner.scan(raw)]
        for start, end in spans:
            secrets += 1
            # Up to two characters at the ends may be quotes, padding or a boundary of the made-up value.
            covered = sum(min(end, e) - max(start, s) for s, e in found if s < end and e > start)
            if covered >= (end - start) - 2:
                hidden += 1
            else:
                wrong.append(f"missed in {title}: {text[max(start - 30, 0) : end]!r}")
        for s, e in found:
            findings += 1
            if any(s < end and e > start for start, end in spans):
                right += 1
            else:
                wrong.append(f"false in {title}: {text[max(s - 30, 0) : e]!r}")
    return secrets, hidden, findings, right, wrong


def test_recall_and_precision_on_text_the_patterns_were_not_written_from(
    redactor: Redactor, record_property: object
) -> None:
    totals = [0, 0, 0, 0]
    wrong: list[str] = []
    for seed in range(5):
        *numbers, why = measure(redactor, seed)
        totals = [a + b for a, b in zip(totals, numbers, strict=True)]
        wrong += why
    secrets, hidden, findings, right = totals
    recall, precision = hidden / secrets, right / findings
    print(f"\nrecall {recall:.3f} ({hidden}/{secrets})  precision {precision:.3f} ({right}/{findings})")
    print("\n".join(sorted(set(wrong))[:40]))
    assert recall >= 0.95
    assert precision >= 0.95
