"""Show results to people and hand them to other programs: text, plots, the HTML report, exports.

Makes text, figures and files from result rows, programs and timelines. Modules called `…_text`, `result_tables` and
`verdicts` make text for the terminal. `plot/` draws single figures; `run_plots` chooses and writes those of a run.
`html/` makes the report, `point_trace` the trace of a point, `exports/` files of other programs.
"""
