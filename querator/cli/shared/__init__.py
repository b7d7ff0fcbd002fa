"""Options, output and errors that commands share."""
