"""The TensorFlow side: capture graphs, time ops and links, run placed steps."""
