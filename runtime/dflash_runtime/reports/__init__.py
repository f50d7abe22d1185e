"""Reports of several forms from one description: Markdown, and one self-contained HTML file."""
