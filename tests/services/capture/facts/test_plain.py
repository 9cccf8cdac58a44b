"""Plain lines are read without the parser, and as it reads them."""

from __future__ import annotations

import random

import pytest

from services.capture.facts.plain import plain
from services.capture.facts.shell import parse
from services.capture.words import words

pytestmark = pytest.mark.unit

# What a shell takes for more than a word, besides words; joined by blanks, half of all lines are plain.
PIECES = (
    "'a b'",
    '"x y"',
    *words(
        "ls -la git status --short npm --watch=false a=b if=/dev/zero *.py ~/x ~ 2>&1 2>/dev/null 'x' \"y\" '' \"\" - -- 1 12 "
        "0x1 a:b user@host:/x %1 + +x a,b = == =~ a= =b . .. ./x /bin/sh echo cd true set eval exec { } {} * a* A=1 x+=1 1> 2 "
        '// s3://b/k https://a.b/c @ _ \'#\' "#" "%d" \'$x\' \'|\' "a|b;c" "it\'s" 10 007 1e5 -1 --x=~/y ~root fi do done in '
        "time not function test [ ] ! & && || | ; && | ; foo; 'x'; if then else for while case select coproc declare export "
        "local unset let until esac readonly typeset \\; $x `x` > < << # (x) x\\ y"
    ),
)


def test_any_line_read_as_plain_is_read_as_by_the_parser() -> None:
    choose = random.Random(17)
    compared = 0
    for _ in range(40_000):
        pieces = choose.choices(PIECES, k=choose.randint(1, 8))
        if choose.random() < 0.7:
            pieces[0] = choose.choice(("ls", "git", "echo", "./run", "x"))
        text = choose.choice(("", " ")) + (" " * choose.choice((1, 1, 1, 2))).join(pieces) + choose.choice(("", " "))
        commands = plain(text)
        if commands is not None:
            compared += 1
            assert repr(commands) == repr(parse(text, {}).commands), text
    assert compared > 5000


@pytest.mark.parametrize(
    "line",
    [
        "git status --short && git diff --stat",
        "grep -rn 'def handler' src tests | wc -l",
        'git commit -q -m "a message, with (this)"',
        "python -m pytest -q tests/unit 2>&1 | tail -n 20",
        "find . -name '*.pyc' -not -path './.venv/*' -exec rm -f {} +",
        "cd /srv/app; make -j 4 build",
    ],
)
def test_what_agents_run_most_is_plain(line: str) -> None:
    assert plain(line) is not None


@pytest.mark.parametrize(
    "line",
    [
        "echo $HOME",
        "A=1 ls",
        "ls > out",
        "ls &",
        "ls\npwd",
        'echo "$(id)"',
        'echo "a\\"b"',
        "echo a'b'",
        "if true",
        "ls |",
        "| ls",
        "",
        " ",
        "echo x # y",
        "echo ünter",
        "x " * 600,
    ],
)
def test_anything_else_is_for_the_parser(line: str) -> None:
    assert plain(line) is None
