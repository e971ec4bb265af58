"""Results for people and for other programs: text, plots, the HTML report, exports.

Takes rows, programs and timelines. Gives text, figures and files.
"""
