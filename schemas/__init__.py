"""The contract of AgentTrace: event models, ids, topics, tables. Pure data; imports nothing of ours."""
