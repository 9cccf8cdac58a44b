"""Package installs: manager and names, from the command lines of the common managers."""

from __future__ import annotations

from services.capture.facts.argv import package
from services.capture.facts.collect import Collector
from services.capture.facts.tables import INSTALLERS


def install(to: Collector, name: str, args: list[str], sub: str | None) -> None:
    if name in ("npx", "bunx", "uvx"):
        target = next((a for a in args if not a.startswith("-")), None)
        if target:
            to.package("pip" if name == "uvx" else "npm", package(target))
        return
    if name == "pacman":
        if any(a.startswith("-S") for a in args):
            for a in args:
                if not a.startswith("-"):
                    to.package("pacman", a)
        return
    manager, subs, valued = INSTALLERS[name]
    words = args
    if name == "uv" and sub in ("pip", "tool"):
        words = [a for a in args if a != sub]
        sub = next((a for a in words if not a.startswith("-")), None)
        subs = subs | {"install", "run"}
        valued = INSTALLERS["pip"][2]
    if sub not in subs:
        return
    seen = False
    i = 0
    while i < len(words):
        text = words[i]
        i += 1
        if text.startswith("-"):
            option, equals, value = text.partition("=")
            if option in valued and not equals:
                value = words[i] if i < len(words) else ""
                i += 1
            if option in ("-r", "--requirement", "-c", "--constraint", "-e") and value:
                to.path(value, "read")
            if option in ("--git",) and value:
                to.package(manager, value)
        elif not seen and text == sub:
            seen = True
        elif seen and text and not text.startswith((".", "/", "~")):
            to.package(manager, package(text))
