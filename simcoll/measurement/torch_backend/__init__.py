"""Run schedules and libraries' own collectives with torch.distributed. Only this folder imports torch."""
