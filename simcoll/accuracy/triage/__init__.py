"""Find the cause of a slow or hung job in the files that people have: tables, logs, dumps, answers of tools.

Takes any mix of files and folders. Finds out what kinds of content each file has (`kinds`), lets the reader of each
kind yield findings (`findings`), and makes one verdict of all findings (`verdict`).
"""
