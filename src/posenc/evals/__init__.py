"""What a model makes of the tasks of `posenc.tasks`, and where it looks while it does."""
