"""Files of every kind as trees that know their places, and what loads compiled code.

Takes the text of YAML and XML files and the types of their keys. Gives validated values, or every complaint with file,
line, column and cure.
"""
