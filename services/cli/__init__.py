"""The command line `agenttrace`: one module a group of commands, imported only when it is called."""
