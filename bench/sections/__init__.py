"""One module a section: ``run(context)`` returns its :class:`bench.figures.Result`."""
