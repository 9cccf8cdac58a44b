"""Redaction: finds secrets and personal data in texts and JSON values and replaces them by keyed placeholders."""

from services.capture.redaction.redactor import Examined, Finding, Redacted, Redactor, placeholder
from services.capture.redaction.rules import RuleError, RulePack
from services.capture.redaction.truncate import truncate

__all__ = ["Examined", "Finding", "Redacted", "Redactor", "RuleError", "RulePack", "placeholder", "truncate"]
