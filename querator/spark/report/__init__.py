"""Reports as one HTML file each, which opens without a network: `page` is what it says, `charts`
draws the pictures in it.
"""
