"""The sidecar: takes hook payloads and events, journals them redacted, answers at once, publishes in order."""
