"""Other people's files, in and out; members of the family never import each other."""
