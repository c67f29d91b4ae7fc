"""The app: try a model, a shift and a mitigation on an image, and open stored results, in a browser."""
