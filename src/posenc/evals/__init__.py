"""What a model finds in a long text, by length, depth and method. The way through: config -> reader -> store -> run -> results
-> wording."""
