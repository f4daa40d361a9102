"""What findings look like: text, tables, maps and lines, in a terminal, as SVG and as HTML."""
