"""Image in, prediction out."""
