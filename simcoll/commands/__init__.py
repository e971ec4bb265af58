"""The commands: click commands of the names in `cli.COMMANDS`, each module imported when its command is used."""
