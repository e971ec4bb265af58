"""Schedules, and a library's own collectives, executed with torch.distributed. Only here torch is imported."""
