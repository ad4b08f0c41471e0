"""The report: run directories in, one offline page, tables and figures out."""
