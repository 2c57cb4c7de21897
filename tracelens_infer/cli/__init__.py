"""The command line: one thin file a command, over the package's public functions."""
