"""`agenttrace demo`: recorded sessions through the real front doors, and a proof that the numbers add up."""
