"""The measurements. Each file has a command, which writes a record, and the table that shows this record on a page."""
