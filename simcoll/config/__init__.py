"""Files that are read: YAML and XML as trees whose values know their place. Also the loader of compiled code.

Takes the text of YAML and XML files and the types of their keys. Gives validated values, or all mistakes at once, each
with file, line, column and what to write instead.
"""
