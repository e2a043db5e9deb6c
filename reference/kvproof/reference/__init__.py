"""An engine that does what the rules say, in integers and linked lists. Start with engine.py, then scheduler.py."""
