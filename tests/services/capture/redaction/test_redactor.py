"""The redactor on texts and JSON values: what is replaced, what stays, and what context says."""

from __future__ import annotations

import re
from typing import Any

import orjson
import pytest

from services.capture.redaction import Redactor, RulePack, truncate
from tests.services.capture.samples import AWS_ID, BEARER, JWT, PEM, SLACK

pytestmark = pytest.mark.unit

PLACEHOLDER = re.compile(r"‹redacted:[a-z0-9_]+:[0-9a-f]{16}›")


def test_the_same_secret_has_the_same_fingerprint_wherever_it_stands(redactor: Redactor) -> None:
    texts = [
        f"export AWS_ACCESS_KEY_ID={AWS_ID}",
        f"id {AWS_ID} end",
        f"https://x.example/?k={AWS_ID}&y=1",
    ]
    prints = {redactor.text(t).findings[0].fingerprint for t in texts}
    assert len(prints) == 1
    other = Redactor(b"another key, just as long as it must be")
    assert other.text(texts[0]).findings[0].fingerprint not in prints


def test_a_short_key_is_refused(pack: RulePack) -> None:
    with pytest.raises(ValueError, match="needs at least 16"):
        Redactor(b"short", pack)


@pytest.mark.parametrize(
    ("text", "kept", "gone", "kind"),
    [
        (
            f'curl -H "Authorization: Bearer {BEARER}" https://x',
            'curl -H "Authorization: Bearer ‹',
            BEARER,
            "authorization",
        ),
        ("postgres://app:pw/with#odd@db:5432/x", "postgres://app:‹", "pw/with#odd", "database_password"),
        ("mongodb+srv://u:p%40ss@c.example.net/?w=1", "@c.example.net/?w=1", "p%40ss", "database_password"),
        ("https://me:hunter2@git.example.net/a.git", "@git.example.net/a.git", "hunter2", "url_password"),
        ("DB_PASSWORD=hunter2\nDB_HOST=db", "DB_HOST=db", "hunter2", "password"),
        ("tool --password hunter2 --verbose", "--verbose", "hunter2", "password"),
        ("tool --api-key=abc123def --verbose", "--verbose", "abc123def", "api_key"),
        ("Cookie: sid=abc123; theme=dark\nHost: x", "Host: x", "abc123", "cookie"),
        ("    client-key-data: TFMwdExTMUNSVWRKVGlCRldFRk5VRXhG\n    x: y", "x: y", "TFMwdExTMUNSVWRK", "kubeconfig"),
        ("mail jane.doe@example.com today", "today", "jane.doe@example.com", "email"),
        ("手机 13800138000，谢谢", "，谢谢", "13800138000", "phone"),
        ("身份证11010519491231002X有效", "有效", "11010519491231002X", "national_id"),
        ("card 4111 1111 1111 1111 exp", "exp", "4111 1111 1111 1111", "bank_card"),
        (f"token {JWT} end", " end", JWT, "jwt"),
        (f"key: {SLACK}", "key: ", SLACK, "slack_token"),
        ("<apiKey>abc123def456</apiKey>", "</apiKey>", "abc123def456", "api_key"),
        ("- name: DB_PASSWORD\n  value: hunter2\n- name: X", "- name: X", "hunter2", "password"),
        ("machine h login me password hunter2\n", "machine h login me", "hunter2", "password"),
        ("mysql -u root -phunter2 app", "mysql -u root -p‹", "hunter2", "password"),
        ("curl -u admin:hunter2 https://h", "https://h", "hunter2", "password"),
        (
            "root:$6$saltsalt$abcdefghijklmnopqrstuvwxyz0123456789:19000:0",
            ":19000:0",
            "abcdefghijklmnopqrstuvwxyz",
            "password_hash",
        ),
        ("the password is Hunter2!x and", " and", "Hunter2!x", "password"),
        ("密码：Hunter2024", "密码：", "Hunter2024", "password"),
        ("Server=db;User Id=sa;Password=Hunter2!;Encrypt=yes", "Encrypt=yes", "Hunter2!", "password"),
        ("java -Djavax.net.ssl.keyStorePassword=changeit9 -jar a.jar", "-jar a.jar", "changeit9", "password"),
    ],
)
def test_secrets_in_text_go_and_the_rest_stays(redactor: Redactor, text: str, kept: str, gone: str, kind: str) -> None:
    done = redactor.text(text)
    assert gone not in done.text
    assert kept in done.text
    assert kind in {f.kind for f in done.findings}


@pytest.mark.parametrize(
    "text",
    [
        "max_tokens: 4096, input_tokens=1234, token_count: 12",
        "password = os.environ['DB_PASSWORD']",
        "password: str | None = None",
        "const token = await getToken(user);",
        "DB_PASSWORD=${DB_PASSWORD}",
        '{"password": "<your password>"}',
        "password_policy=strict secret_name=app/db token_url=https://x/token",
        "git@github.com:org/repo.git",
        "7f3a2b1c-0d4e-4f5a-8b6c-9d0e1f2a3b4c",
        "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "commit 9fceb02d0ae598e95dc970b74767f19372d61af8",
        "/usr/lib/python3/dist-packages/some_package/module_name.py:123",
        "2026-01-02T03:04:05.678901Z took 1700000000000 ns 1700000000000000",
        "lodash@4.17.21 @types/node@20.1.0 getty@tty1.service",
        "toolu_01A09q90qw90lq917835lq9 call_Zs1rTkGkTTlCxDO5pLVWB9aA",
        "def check_password(password, hashed): return verify(password, hashed)",
        "Error: token expired, authentication failed for user bob",
        "-----BEGIN CERTIFICATE-----\nMIIBszCCAVmgAwIBAgIUEXAMPLE\n-----END CERTIFICATE-----",
        "https://host:8443/path/@scope/pkg",
        "docker run -u 1000:1000 -p 8080:80 img",
        "class Secret(BaseModel): api_key: SecretStr",
        "Enter password: ",
    ],
)
def test_what_only_looks_like_a_secret_stays(redactor: Redactor, text: str) -> None:
    done = redactor.text(text)
    assert done.text == text, done.findings
    assert done.findings == ()


def test_private_keys_go_whole_in_every_layout_under_one_fingerprint(redactor: Redactor) -> None:
    lines = PEM.splitlines()
    layouts = {
        "plain": PEM,
        "numbered": "\n".join(f"{n:6}\t{line}" for n, line in enumerate(lines, 1)),
        "arrow": "\n".join(f"{n:5}→{line}" for n, line in enumerate(lines, 1)),
        "one line": PEM.replace("\n", "\\n"),
        "twice escaped": PEM.replace("\n", "\\\\n"),
        "json": orjson.dumps({"k": PEM}).decode(),
        "crlf": PEM.replace("\n", "\r\n"),
        "diff": "\n".join("+" + line for line in lines),
        "indented": "\n".join("    " + line for line in lines),
    }
    prints = {}
    for name, text in layouts.items():
        done = redactor.text(f"before\n{text}\nafter")
        assert lines[2] not in done.text, name
        assert done.text.startswith("before\n")
        assert done.text.endswith("\nafter"), name
        prints[name] = done.findings[0].fingerprint
    assert len(set(prints.values())) == 1, prints


def test_a_key_that_is_cut_off_goes_as_far_as_it_reaches(redactor: Redactor) -> None:
    head = "\n".join(PEM.splitlines()[:4])
    tail = "\n".join(PEM.splitlines()[2:])
    assert PEM.splitlines()[2] not in redactor.text(head).text
    assert PEM.splitlines()[2] not in redactor.text("x\n" + tail + "\ny").text


def test_a_key_printed_as_a_list_of_lines_goes(redactor: Redactor) -> None:
    value, findings = redactor.value({"lines": PEM.splitlines(), "other": "stays"})
    assert findings[0].kind == "private_key"
    assert all(line not in orjson.dumps(value).decode() for line in PEM.splitlines()[1:-1])
    assert value["other"] == "stays"


def test_names_are_context_in_json(redactor: Redactor) -> None:
    value = {
        "password": "correct horse battery",
        "pin_password": 482913,
        "nested": [{"apiKey": "abc"}, {"client_secret": ["one-two", "three"]}],
        "env": [{"name": "DB_PASSWORD", "value": "hunter2"}, {"name": "DB_HOST", "value": "db"}],
        "argv": ["tool", "--token", "abcd", "--verbose"],
        "kind": "Secret",
        "data": {"anything": "aHVudGVyMg=="},
        "cookies": {"sid": "s3ss"},
        "max_tokens": 4096,
        "token_type": "Bearer",
        "password_hint": "my dog",
        "passwordRequired": True,
        "secret": None,
    }
    done, findings = redactor.value(value)
    for hidden in (
        done["password"],
        done["pin_password"],
        done["nested"][0]["apiKey"],
        *done["nested"][1]["client_secret"],
        done["env"][0]["value"],
        done["argv"][2],
        done["data"]["anything"],
        done["cookies"]["sid"],
    ):
        assert PLACEHOLDER.fullmatch(hidden), hidden
    for key in ("max_tokens", "token_type", "password_hint", "passwordRequired", "secret"):
        assert done[key] == value[key]
    assert done["env"][1]["value"] == "db"
    assert len(findings) == 9
    assert value["password"] == "correct horse battery", "the given value is not changed"


def test_keys_are_redacted_too_and_stay_apart(redactor: Redactor) -> None:
    done, _ = redactor.value({AWS_ID: 1, f"x {AWS_ID}": 2, "plain": 3})
    assert AWS_ID not in str(done)
    assert sorted(done.values()) == [1, 2, 3]
    twice, _ = redactor.value({"a@example.com": 1, "A": {"a@example.com": 2}})
    assert len(twice) == 2


def test_a_value_without_secrets_comes_back_as_the_same_object(redactor: Redactor) -> None:
    value = {"command": "ls -la", "n": [1, 2.5, None, True]}
    done, findings = redactor.value(value)
    assert done is value
    assert findings == ()


def test_json_inside_a_text_is_text_with_escapes(redactor: Redactor) -> None:
    inner = orjson.dumps({"password": "hunter2", "n": 1}).decode()
    for _ in range(3):
        done = redactor.text(inner)
        assert "hunter2" not in done.text
        assert done.findings[0].kind == "password"
        inner = orjson.dumps({"body": inner}).decode()


def test_nesting_of_ten_thousand_does_not_recurse(redactor: Redactor) -> None:
    value: Any = {"password": "hunter2"}
    for i in range(10_000):
        value = [value] if i % 2 else {"k": value}
    done, findings = redactor.value(value)
    assert len(findings) == 1
    while isinstance(done, list) or "k" in done:
        done = done[0] if isinstance(done, list) else done["k"]
    assert PLACEHOLDER.fullmatch(done["password"])


@pytest.mark.parametrize(
    "text", ["\ud800 password=hunter2", "a\x00b\x00c", "\x00\x01\x02" * 50, "é" * 1000, "\udfff", ""]
)
def test_odd_text_is_normal_input(redactor: Redactor, text: str) -> None:
    done = redactor.text(text)
    done.text.encode()
    assert "hunter2" not in done.text
    again, _ = redactor.value({text: text})
    orjson.dumps(again)


def test_a_placeholder_is_never_matched_again_even_where_its_kind_is_a_key_word(redactor: Redactor) -> None:
    text = "password=‹redacted:password:0123456789abcdef› token: ‹redacted:api_key:0123456789abcdef›"
    assert redactor.text(text).text == text
    escaped = orjson.dumps({"x": text}).decode().replace("‹", "\\u2039").replace("›", "\\u203a")
    assert redactor.text(escaped).text == escaped
    value = {"password": "‹redacted:password:0123456789abcdef›"}
    assert redactor.value(value)[0] is value


def test_a_made_up_placeholder_hides_nothing(redactor: Redactor) -> None:
    assert AWS_ID not in redactor.text(f"‹redacted:{AWS_ID}:0123456789abcdef›").text


def test_what_overlaps_becomes_one_and_takes_the_more_telling_name(redactor: Redactor) -> None:
    done = redactor.text(f'API_TOKEN="{SLACK}"')
    assert [f.kind for f in done.findings] == ["slack_token"]
    assert done.text.count("‹") == 1


class TestTruncate:
    def test_short_text_is_untouched(self) -> None:
        assert truncate("short", 100) == "short"

    @pytest.mark.parametrize("limit", range(20, 220, 3))
    def test_no_placeholder_or_character_is_cut_and_the_limit_holds(self, limit: int) -> None:
        text = "word é " * 5 + "x ‹redacted:password:0123456789abcdef› " * 4 + "漢字" * 20
        cut = truncate(text, limit)
        assert len(cut.encode()) <= max(limit, len(f"…[+{len(text.encode())} bytes]".encode()))
        left = PLACEHOLDER.sub("", cut)
        assert "redacted" not in left
        assert "\ufffd" not in cut
        shown = cut.rpartition("…[+")[0]
        assert text.startswith(shown)

    def test_the_cut_falls_on_a_border_of_words(self) -> None:
        assert truncate("alpha beta gamma delta epsilon zeta", 34).startswith("alpha beta ")

    def test_it_says_how_much_is_gone(self) -> None:
        text = "a" * 1000
        cut = truncate(text, 100)
        shown, _, rest = cut.partition("…[+")
        assert len(shown) + int(rest.split()[0]) == 1000
