"""Read logs of NCCL and RCCL (NCCL_DEBUG), and what drivers, plugins and launchers write beside them.

`log_lines` takes a log apart into lines, `line_cases` knows lines that name a cause, and `log_facts` collects what a
log says of the communicator. What readers of measured tables need of logs stands here, too.
"""
