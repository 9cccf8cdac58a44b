"""The command that agent runtimes start for each hook event, and the constants it shares with the collector."""
