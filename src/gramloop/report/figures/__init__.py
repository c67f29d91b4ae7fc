"""The figures of a report: `drawing.draw_figures` draws those that loaded results allow.

The figures themselves know no store: each takes arrays, and gives a `Drawn` with its words.
"""
