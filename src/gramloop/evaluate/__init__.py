"""Evaluation: what is to be run, running it on any number of workers, and keeping what came out."""
