"""Understands a copy of MCP traffic: records of the tap become events. Pure; the process around it is `observe.py`."""

from services.mcp_proxy.observer.making import ObserverSettings
from services.mcp_proxy.observer.observer import Observer

__all__ = ["Observer", "ObserverSettings"]
