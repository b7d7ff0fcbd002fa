"""Reports as one HTML file each, which opens without a network.

The modules and sub-packages:

    charts  pictures for a page: SVG, drawn by Matplotlib
    page    the parts of a report, and their HTML
"""
