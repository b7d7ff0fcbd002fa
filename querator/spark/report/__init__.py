"""Reports as single HTML files that open without a network. The contents of a report are the matter
of its pipeline.

    charts    charts, drawn as SVG
    page      the HTML page and its parts
"""
