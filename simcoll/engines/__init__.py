"""Engines: each takes a `Program` and returns a `Timeline`, all the same one."""
