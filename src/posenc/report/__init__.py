"""Results as a page: figures.py draws, page.py lays out, template.html is what a reader sees."""
