"""Results for people and for other programs: text, plots, the HTML report, exports.

Takes result rows, programs and timelines. Gives text, figures and files. `result_tables` and `console` make text for
the terminal, `plot/` draws single figures, `run_plots` chooses and writes those of a run, `html/` is the report,
`point_trace` makes the trace of a point, `exports/` holds writers for other programs, which `exporters` looks up.
"""
